"""SFT and DPO against TRL's own code: `compute_loss` of `SFTTrainer` and `DPOTrainer` on the same model and replies,
and the gradient that follows from it for every parameter.

Only what surrounds the method is stood in for: a trainer object that was never set up, with the attributes that the
method reads. Model, collation of the batch, log-probabilities and loss are TRL's.
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
from transformers import PreTrainedModel

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.training.batch import Group, logprobs_of
from tuneloop.training.objectives import Clip, objective_named
from tuneloop.training.selection import select
from tuneloop.training.update import UpdateLog, accumulate

BETA = 0.3
REWARDS = [[1.0, 0.0, 0.5], [0.2, 0.8, 0.8]] * 4
"""Of the batch's eight groups of three."""


@pytest.fixture(scope="module")
def trl() -> Any:
    """TRL 1.16. Without it the comparison is skipped, except where CI runs it."""
    try:
        import trl
        from trl import DPOTrainer, SFTTrainer  # noqa: F401
    except ImportError as error:
        missing = f"TRL cannot be imported: {error}"
    else:
        if trl.__version__.startswith("1.16."):
            return trl
        missing = f"this holds the losses against TRL 1.16, and {trl.__version__} is installed"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


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


def in_trl(trl: Any, trainer_class: type, model: PreTrainedModel, batch: dict[str, Any], **more: Any) -> Any:
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
def test_the_sft_loss_and_its_gradient_are_trls(trl: Any, dtype: torch.dtype, close: float) -> None:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    groups = chosen("sft")
    rows = [{"input_ids": g.prompt + g.replies[0], "labels": [-100] * len(g.prompt) + g.replies[0]} for g in groups]
    batch = DataCollatorForLanguageModeling(pad_token_id=2)(rows)
    args = SimpleNamespace(loss_type="nll", average_tokens_across_devices=False)
    more = {"args": args, "compute_loss_func": None, "label_smoother": None}
    value, gradients, _ = in_trl(trl, trl.SFTTrainer, tiny_model(dtype=dtype), batch, **more)
    log, found = ours(tiny_model(dtype=dtype), "sft", groups)
    assert log.loss == pytest.approx(value, rel=close)
    assert relative_error(found, gradients) < close


# The first update, where policy and base policy are one, and a later one.
@pytest.mark.parametrize("other_base", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-5), (torch.float32, 1e-4)])
def test_the_dpo_loss_its_gradient_and_what_is_logged_are_trls(
    trl: Any, dtype: torch.dtype, close: float, other_base: bool
) -> None:
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
    value, gradients, metrics = in_trl(trl, trl.DPOTrainer, tiny_model(dtype=dtype), batch, **more)
    log, found = ours(tiny_model(dtype=dtype), "dpo", groups)
    assert log.loss == pytest.approx(value, rel=close)
    assert relative_error(found, gradients) < close
    rewards = BETA * log.pairs.double()
    expected = [metrics[f"rewards/{name}"] for name in ("chosen", "rejected")]
    assert rewards.mean(0).tolist() == pytest.approx(expected, rel=close, abs=1e-5)
    if other_base:
        assert (rewards[:, 0] > rewards[:, 1]).double().mean() == pytest.approx(metrics["rewards/accuracies"])
