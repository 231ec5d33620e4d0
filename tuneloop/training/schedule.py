"""What changes from step to step: functions of `train` and of the steps already taken."""

from __future__ import annotations

from tuneloop.params import TrainParams


def learning_rate(params: TrainParams, step: int) -> float:
    """Linear rise over `lr_warmup` steps, then linear fall to `lr_final` · lr at the last."""
    rise = min(1.0, (step + 1) / max(1, params.lr_warmup))
    fall = 1 - (1 - params.lr_final) * step / max(1, params.steps - 1)
    return params.lr * rise * fall


def kl_coefficient(params: TrainParams, step: int) -> float:
    """Falls linearly to 0 at the share `kl_until` of the steps."""
    fall = 1.0 if params.kl_until is None else 1 - step / (params.kl_until * params.steps)
    return params.kl_coefficient * max(0.0, fall)
