"""One row of the step history: what a step sampled, and what its updates did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tuneloop.rollout.ask import Answer
from tuneloop.training.update import UpdateLog


def history_row(
    step: int,
    outcomes: Sequence[str],
    answers: Sequence[Sequence[Answer]],
    unanimous: int,
    logs: Sequence[UpdateLog],
    lr: float,
    weights_changed: float,
    mask_overlong: bool = False,
    algorithm: str = "gspo",
) -> dict[str, Any]:
    """The row of step `step` (from 1). `unanimous` counts the groups left out because all their
    rewards were equal; `overlong_masked` is the share of all replies that was left out of the loss because the
    limit cut them. Ratio, clip shares, entropy, KL and gap are over the replies that were used;
    the gap |log p(engine) − log p(trainer)| is that of the first update, whose weights are the engine's;
    `engine_ratio_capped` is the share of the engine's importance weights that was cut to the cap.
    Columns without a value (no truncated reply, no update, an option that is off) are empty: without a rollout
    (`answers` empty, training on examples from a file) all that is about replies, and under `sft` and `dpo`, which have
    no ratio, ratio and clip shares. Those two have columns of their own at the end: `IMITATION_COLUMNS`."""
    flat = [answer for group in answers for answer in group]
    rewards = np.array([a.outcome.reward for a in flat], dtype=np.float64)
    names = [a.outcome.name for a in flat]
    lengths = np.array([a.length for a in flat], dtype=np.float64)
    cut = np.array([a.reply.finish_reason == "length" for a in flat], dtype=bool)
    row: dict[str, Any] = {
        "step": step,
        "reward_mean": rewards.mean() if flat else None,
        "reward_std": rewards.std() if flat else None,
        "reward_min": rewards.min() if flat else None,
        "reward_max": rewards.max() if flat else None,
        **{f"share_{name}": names.count(name) / len(names) if flat else None for name in outcomes},
        "length_all": lengths.mean() if flat else None,
        "length_finished": lengths[~cut].mean() if (~cut).any() else None,
        "length_truncated": lengths[cut].mean() if cut.any() else None,
    }
    measured = _updates(logs) if logs else dict.fromkeys(UPDATE_COLUMNS)
    row["overlong_masked"] = cut.mean() if mask_overlong and flat else None
    row |= {name: measured[name] for name in UPDATE_COLUMNS[:6]}
    row["zero_variance_groups"] = unanimous if flat else None
    row |= {name: measured[name] for name in UPDATE_COLUMNS[6:9]}
    row["lr"] = lr
    row |= {name: measured[name] for name in UPDATE_COLUMNS[9:]}
    row["weights_changed"] = weights_changed
    row |= _imitation(logs, IMITATION_COLUMNS.get(algorithm, ()))
    return {name: _number(value) for name, value in row.items()}


UPDATE_COLUMNS = (
    "ratio_mean",
    "ratio_std",
    "ratio_min",
    "ratio_max",
    "clip_low",
    "clip_high",
    "entropy",
    "kl",
    "grad_norm",
    "engine_gap_mean",
    "engine_gap_max",
    "engine_ratio_capped",
)


IMITATION_COLUMNS = {
    "sft": ("loss",),
    "dpo": ("loss", "pair_accuracy", "log_ratio_margin", "log_ratio_chosen", "log_ratio_rejected"),
}
"""`loss`: the objective's, a mean over the step's updates (nats a token under sft, a pair under dpo). Means over the
step's pairs: whether the policy prefers the chosen reply more than the base policy does (while the two are one policy,
rounding decides), and log πθ/πbase (nats) of the chosen and the rejected reply, and of the one less the other."""


def _imitation(logs: Sequence[UpdateLog], columns: Sequence[str]) -> dict[str, float | None]:
    if not logs or not columns:
        return dict.fromkeys(columns)
    values = [sum(log.loss for log in logs) / len(logs)]
    if logs[0].pairs is not None:
        chosen, rejected = torch.cat([log.pairs for log in logs]).double().unbind(1)
        margin = chosen - rejected
        values += [x.double().mean().item() for x in (margin > 0, margin, chosen, rejected)]
    return dict(zip(columns, values, strict=True))


def _updates(logs: Sequence[UpdateLog]) -> dict[str, float | None]:
    ratio = torch.cat([log.ratio for log in logs]).double()
    tokens, replies = sum(log.tokens for log in logs), sum(log.replies for log in logs)
    kl = [log.kl_sum for log in logs if log.kl_sum is not None]
    capped = [log.capped for log in logs if log.capped is not None]
    of_ratio = (
        (
            ratio.mean().item(),
            ratio.std(correction=0).item(),
            ratio.min().item(),
            ratio.max().item(),
            torch.cat([log.clipped_low for log in logs]).double().mean().item(),
            torch.cat([log.clipped_high for log in logs]).double().mean().item(),
        )
        if len(ratio)
        else (None,) * 6
    )
    values = (
        *of_ratio,
        sum(log.entropy_sum for log in logs) / tokens,
        sum(kl) / replies if kl else None,
        sum(log.grad_norm for log in logs) / len(logs),
        None if logs[0].gap_sum is None else logs[0].gap_sum / logs[0].tokens,
        logs[0].gap_max,
        torch.cat(capped).double().mean().item() if capped else None,
    )
    return dict(zip(UPDATE_COLUMNS, values))


def _number(value: Any) -> Any:
    """Nine significant digits: what float32 arithmetic can mean, in text that repeats."""
    return float(f"{value:.9g}") if isinstance(value, float) else value
