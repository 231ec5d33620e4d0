"""Training objectives by name. Adding one is one file and one line here."""

from tuneloop.training.objectives import dapo, dr_grpo, grpo, gspo, gspo_token
from tuneloop.training.objectives.contract import Clip, Counts, Objective, Replies, Terms, Unit

OBJECTIVES: dict[str, Objective] = {
    "gspo": gspo,
    "gspo_token": gspo_token,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
}

__all__ = ["OBJECTIVES", "Clip", "Counts", "Objective", "Replies", "Terms", "Unit"]
