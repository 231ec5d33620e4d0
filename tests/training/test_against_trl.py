"""Loss and gradient against TRL's own code: `GRPOTrainer._compute_loss`, given the same log-probabilities;
`compute_loss` of `SFTTrainer` and `DPOTrainer`, given the same model and replies.

Only what surrounds that method is stood in for: a trainer object that was never set up, with the
attributes the method reads, and a model that answers with the log-probabilities of the test.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from example_batch import BATCH, TEMPERATURE
from sequence_truth import relative_error, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.training.batch import Group, logprobs_of
from tuneloop.training.objectives import OBJECTIVES, Clip, Counts, Replies, objective_named
from tuneloop.training.selection import select
from tuneloop.training.update import UpdateLog, accumulate, engine_weights, kl_to_base

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
    grpo_trainer: type,
    name: str,
    logp: Tensor,
    old: Tensor,
    mask: Tensor,
    advantage: Tensor,
    beta: float = 0.0,
    base: Tensor | None = None,
    weights: Tensor | None = None,
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
        "beta": beta,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": weights is not None,
        "vllm_importance_sampling_correction": weights is not None,
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
            "ref_per_token_logps": base,
            "importance_sampling_ratio": weights,
            "num_items_in_batch": mask.sum(),
        },
    )
    return loss, {key: values[-1] for key, values in trainer._metrics["train"].items()}


def our_loss(name: str, logp: Tensor, old: Tensor, mask: Tensor, advantage: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Loss and the same metrics; `advantage` [N, 1] or [N, L]."""
    terms = OBJECTIVES[name].terms(Replies(logp, old, mask, advantage), CLIP)
    counts = Counts(replies=len(logp), tokens=int(mask.sum()), max_new_tokens=LIMIT)
    shares = {
        "clip_ratio/low_mean": terms.clipped_low.double().mean().item(),
        "clip_ratio/high_mean": terms.clipped_high.double().mean().item(),
    }
    return terms.loss / OBJECTIVES[name].normaliser(counts), shares


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities now and before, mask and advantages [16] of replies of 1 to 7 tokens."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([7, 1, 4, 2, 6, 3, 5, 7] * 2)
    mask = torch.arange(7) < lengths[:, None]
    old = -3 * torch.rand(16, 7, generator=draw, dtype=torch.float64)
    # Whole replies drift as well as single tokens, so that sequence ratios leave the clip range too.
    drift = 0.3 * torch.randn(16, 1, generator=draw, dtype=torch.float64)
    new = old + drift + 0.1 * torch.randn(16, 7, generator=draw, dtype=torch.float64)
    old, new = (x.masked_fill(~mask, 0.0) for x in (old, new))
    return new, old, mask, torch.randn(16, generator=draw, dtype=torch.float64)


def assert_equal(our_value: Tensor, ours: Tensor, their_value: Tensor, theirs: Tensor) -> None:
    """Equal losses, with equal gradients for the log-probabilities `ours` and `theirs`."""
    our_value.backward()
    their_value.backward()
    assert our_value.item() == pytest.approx(their_value.item(), rel=1e-12)
    assert (ours.grad - theirs.grad).norm() / theirs.grad.norm() < 1e-12


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", IN_TRL)
def test_loss_gradient_and_clip_shares_are_trls(grpo_trainer: type, name: str, seed: int) -> None:
    new, old, mask, advantage = drawn(seed)
    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    our_value, our_shares = our_loss(name, ours, old, mask, advantage[:, None])
    their_value, their_metrics = trl_loss(grpo_trainer, name, theirs, old, mask, advantage)
    assert_equal(our_value, ours, their_value, theirs)
    if name != "gspo_token":  # TRL logs one ratio a reply, this objective one a token
        assert our_shares == pytest.approx({key: their_metrics[key] for key in our_shares}, rel=1e-6)
        assert sum(our_shares.values()) > 0


# TRL divides the KL term like the rest of the loss; with loss_type "grpo" that is a reply's mean, as here always.
@pytest.mark.parametrize("name", ["gspo", "gspo_token", "grpo"])
def test_the_kl_term_is_trls(grpo_trainer: type, name: str) -> None:
    new, old, mask, advantage = drawn(7)
    base = (old + 0.4 * torch.linspace(-1, 1, 7, dtype=torch.float64)).masked_fill(~mask, 0.0)
    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    our_value = our_loss(name, ours, old, mask, advantage[:, None])[0] + 0.7 * kl_to_base(ours, base, mask) / 16
    their_value, metrics = trl_loss(grpo_trainer, name, theirs, old, mask, advantage, beta=0.7, base=base)
    assert metrics["kl"] > 0.01, "else the test shows nothing"
    assert_equal(our_value, ours, their_value, theirs)


# `vllm_importance_sampling_mode`: "sequence_truncate" for one ratio a reply, else "token_truncate". TRL makes
# these weights while it generates, in the middle of a method that cannot run alone: they are written out here.
@pytest.mark.parametrize("name", IN_TRL)
def test_engine_weights_act_as_in_trl(grpo_trainer: type, name: str) -> None:
    new, old, mask, advantage = drawn(8)
    difference = (0.1 * torch.randn(16, 7, generator=torch.Generator().manual_seed(9), dtype=torch.float64)) * mask
    a_reply = IN_TRL[name][0] == "sequence"
    in_trl = (difference.sum(-1, keepdim=True) if a_reply else difference).exp().clamp(max=1.1)
    weights, capped = engine_weights(difference, mask, OBJECTIVES[name].UNIT, 1.1)
    assert 0 < capped.double().mean() < 1
    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    our_value, _ = our_loss(name, ours, old, mask, weights * advantage[:, None])
    their_value, _ = trl_loss(grpo_trainer, name, theirs, old, mask, advantage, weights=in_trl)
    assert_equal(our_value, ours, their_value, theirs)


# SFT and DPO: `compute_loss` on the same model and replies, with the gradient for every parameter. Collation of the
# batch, log-probabilities and loss are TRL's.

BETA = 0.3
REWARDS = [[1.0, 0.0, 0.5], [0.2, 0.8, 0.8]] * 4
"""Of the batch's eight groups of three."""


def chosen(algorithm: str, base: PreTrainedModel | None = None) -> list[Group]:
    """What is trained on of the batch; with the log-probabilities of `base` where there is one."""
    groups = select(algorithm, BATCH, REWARDS)
    if base is None:
        return groups
    found = logprobs_of(DenseDecoder(base), groups, TEMPERATURE, 512)
    return [Group(g.prompt, g.replies, g.old_logprobs, g.advantages, base_logprobs=b) for g, b in zip(groups, found)]


def ours(model: PreTrainedModel, algorithm: str, groups: Sequence[Group]) -> tuple[UpdateLog, list[torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    log = accumulate(DenseDecoder(model), groups, objective_named(algorithm, BETA), Clip(0.1, 0.1), TEMPERATURE, 9, 512)
    return log, [p.grad for p in model.parameters()]


def in_trl(trainer_class: type, model: PreTrainedModel, batch: dict[str, Any], **more: Any) -> Any:
    """The loss's value, its gradients, and the metrics that TRL logs beside it."""
    from accelerate import Accelerator
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, TEMPERATURE, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
    model.train()
    trainer = object.__new__(trainer_class)
    trainer.__dict__ |= {
        "accelerator": Accelerator(cpu=True),
        "model": model,
        "aux_loss_enabled": False,
        "_metrics": {"train": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
        **more,
    }
    loss = trainer.compute_loss(model, batch)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), gradients, {name: values[-1] for name, values in trainer._metrics["train"].items()}


# Rounding at 2.2e-16 (1.2e-7) a number; TRL's log-probabilities go through float32 in either case.
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-5), (torch.float32, 1e-4)])
def test_the_sft_loss_and_its_gradient_are_trls(grpo_trainer: type, dtype: torch.dtype, close: float) -> None:
    import trl
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    groups = chosen("sft")
    rows = [{"input_ids": g.prompt + g.replies[0], "labels": [-100] * len(g.prompt) + g.replies[0]} for g in groups]
    batch = DataCollatorForLanguageModeling(pad_token_id=2)(rows)
    args = SimpleNamespace(loss_type="nll", average_tokens_across_devices=False)
    more = {"args": args, "compute_loss_func": None, "label_smoother": None}
    value, gradients, _ = in_trl(trl.SFTTrainer, tiny_model(dtype=dtype), batch, **more)
    log, found = ours(tiny_model(dtype=dtype), "sft", groups)
    assert log.loss == pytest.approx(value, rel=close)
    assert relative_error(found, gradients) < close


# The first update, where policy and base policy are one, and a later one.
@pytest.mark.parametrize("other_base", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-5), (torch.float32, 1e-4)])
def test_the_dpo_loss_its_gradient_and_what_is_logged_are_trls(
    grpo_trainer: type, dtype: torch.dtype, close: float, other_base: bool
) -> None:
    import trl
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.utils import add_fused_lm_head

    base = tiny_model(seed=int(other_base), dtype=dtype)
    groups = chosen("dpo", base)
    rows = [{"prompt_ids": g.prompt, "chosen_ids": g.replies[0], "rejected_ids": g.replies[1]} for g in groups]
    batch = DataCollatorForPreference(pad_token_id=2)(rows)
    reference = tiny_model(seed=int(other_base), dtype=dtype)
    add_fused_lm_head(reference, TEMPERATURE)
    more = {
        "args": SimpleNamespace(gradient_checkpointing_kwargs=None),
        "ref_model": reference,
        "precompute_ref_logps": False,
        "beta": BETA,
        "loss_types": ["sigmoid"],
        "loss_weights": [1.0],
        "f_divergence_type": "reverse_kl",
        "ld_alpha": None,
        "use_weighting": False,
        "label_smoothing": 0.0,
    }
    value, gradients, metrics = in_trl(trl.DPOTrainer, tiny_model(dtype=dtype), batch, **more)
    log, found = ours(tiny_model(dtype=dtype), "dpo", groups)
    assert log.loss == pytest.approx(value, rel=close)
    assert relative_error(found, gradients) < close
    rewards = BETA * log.pairs.double()
    expected = [metrics[f"rewards/{name}"] for name in ("chosen", "rejected")]
    assert rewards.mean(0).tolist() == pytest.approx(expected, rel=close, abs=1e-5)
    if other_base:
        assert (rewards[:, 0] > rewards[:, 1]).double().mean() == pytest.approx(metrics["rewards/accuracies"])
