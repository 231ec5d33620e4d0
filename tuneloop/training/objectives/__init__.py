"""Training objectives by name. Adding one is one file and one line here."""

from tuneloop.training.objectives import gspo
from tuneloop.training.objectives.contract import Clip, Counts, Objective, Replies, Terms

OBJECTIVES: dict[str, Objective] = {
    "gspo": gspo,
}

__all__ = ["OBJECTIVES", "Clip", "Counts", "Objective", "Replies", "Terms"]
