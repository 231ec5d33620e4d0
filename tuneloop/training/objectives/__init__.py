"""Training objectives by name. Adding one is one file and one line here."""

from tuneloop.training.objectives import dapo, dr_grpo, grpo, gspo, gspo_token, sft
from tuneloop.training.objectives.contract import Clip, Counts, Objective, Replies, Terms, Unit
from tuneloop.training.objectives.dpo import Dpo

OBJECTIVES: dict[str, Objective] = {
    "gspo": gspo,
    "gspo_token": gspo_token,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
}
"""Of reinforcement learning: all replies of a group, weighed by their advantages."""


def objective_named(algorithm: str, dpo_beta: float) -> Objective:
    """The objective of `train.algorithm`."""
    return {"sft": sft, "dpo": Dpo(dpo_beta)}.get(algorithm) or OBJECTIVES[algorithm]


__all__ = ["OBJECTIVES", "Clip", "Counts", "Objective", "Replies", "Terms", "Unit", "objective_named"]
