"""Loss and gradient against TRL's own code: `GRPOTrainer._compute_loss`, given the same log-probabilities.

Only what surrounds that method is stood in for: a trainer object that was never set up, with the
attributes the method reads, and a model that answers with the log-probabilities of the test.
"""

from __future__ import annotations

import os
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tuneloop.training.objectives import OBJECTIVES, Clip, Counts, Replies

CLIP = Clip(low=0.05, high=0.08)
LIMIT = 9

# What TRL calls each objective: importance_sampling_level and loss_type.
IN_TRL = {
    "gspo": ("sequence", "grpo"),
    "gspo_token": ("sequence", "grpo"),
    "grpo": ("token", "grpo"),
    "dr_grpo": ("token", "dr_grpo"),
    "dapo": ("token", "dapo"),
}


@pytest.fixture(scope="module")
def grpo_trainer() -> type:
    """TRL's trainer class. Without TRL 1.16 the comparison is skipped, except where CI runs it."""
    try:
        import trl
        from trl import GRPOTrainer
    except ImportError as error:
        missing = f"TRL cannot be imported: {error}"
    else:
        if trl.__version__.startswith("1.16."):
            return GRPOTrainer
        missing = f"this holds the loss against TRL 1.16, and {trl.__version__} is installed"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


def trl_loss(
    grpo_trainer: type, name: str, logp: Tensor, old: Tensor, mask: Tensor, advantage: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """TRL's loss, and the metrics it logs beside it."""
    from accelerate import Accelerator

    level, loss_type = IN_TRL[name]
    trainer = object.__new__(grpo_trainer)
    trainer.__dict__ |= {
        "accelerator": Accelerator(cpu=True),
        "args": SimpleNamespace(delta=None, report_to=[], steps_per_generation=1, use_bias_correction_kl=False),
        "state": SimpleNamespace(global_step=0),
        "model": SimpleNamespace(training=True),
        "importance_sampling_level": level,
        "loss_type": loss_type,
        "epsilon_low": CLIP.low,
        "epsilon_high": CLIP.high,
        "max_completion_length": LIMIT,
        "beta": 0.0,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "aux_loss_enabled": False,
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1,
        "_metrics": {"train": defaultdict(list)},
    }

    def model(input_ids: Tensor, attention_mask: Tensor, labels: Tensor, fused_lm_head: bool) -> SimpleNamespace:
        # Two prompt tokens, then the replies, padded on the right.
        assert torch.equal(attention_mask[:, 2:], mask.long())
        return SimpleNamespace(log_probs=torch.cat([torch.zeros(len(logp), 2), logp], 1), entropy=0 * logp)

    loss = trainer._compute_loss(
        model,
        {
            "prompt_ids": torch.ones(len(logp), 2, dtype=torch.long),
            "prompt_mask": torch.ones(len(logp), 2, dtype=torch.long),
            "completion_ids": torch.ones_like(mask, dtype=torch.long),
            "completion_mask": mask.long(),
            "advantages": advantage,
            "old_per_token_logps": old,
            "num_items_in_batch": mask.sum(),
        },
    )
    return loss, {key: values[-1] for key, values in trainer._metrics["train"].items()}


def our_loss(name: str, logp: Tensor, old: Tensor, mask: Tensor, advantage: Tensor) -> tuple[Tensor, dict[str, float]]:
    terms = OBJECTIVES[name].terms(Replies(logp, old, mask, advantage), CLIP)
    counts = Counts(replies=len(logp), tokens=int(mask.sum()), max_new_tokens=LIMIT)
    shares = {
        "clip_ratio/low_mean": terms.clipped_low.double().mean().item(),
        "clip_ratio/high_mean": terms.clipped_high.double().mean().item(),
    }
    return terms.loss / OBJECTIVES[name].normaliser(counts), shares


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", IN_TRL)
def test_loss_gradient_and_clip_shares_are_trls(grpo_trainer: type, name: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([7, 1, 4, 2, 6, 3, 5, 7] * 2)
    mask = torch.arange(7) < lengths[:, None]
    old = -3 * torch.rand(16, 7, generator=draw, dtype=torch.float64)
    # Whole replies drift as well as single tokens, so that sequence ratios leave the clip range too.
    drift = 0.3 * torch.randn(16, 1, generator=draw, dtype=torch.float64)
    new = old + drift + 0.1 * torch.randn(16, 7, generator=draw, dtype=torch.float64)
    old, new = (x.masked_fill(~mask, 0.0) for x in (old, new))
    advantage = torch.randn(16, generator=draw, dtype=torch.float64)

    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    our_value, our_shares = our_loss(name, ours, old, mask, advantage)
    their_value, their_metrics = trl_loss(grpo_trainer, name, theirs, old, mask, advantage)
    our_value.backward()
    their_value.backward()
    assert our_value.item() == pytest.approx(their_value.item(), rel=1e-12)
    assert (ours.grad - theirs.grad).norm() / theirs.grad.norm() < 1e-12
    if name != "gspo_token":  # TRL logs one ratio a reply, this objective one a token
        assert our_shares == pytest.approx({key: their_metrics[key] for key in our_shares}, rel=1e-6)
        assert sum(our_shares.values()) > 0
