"""What an objective is given, and what it gives back.

Shape suffixes: N replies of a micro-batch · L longest reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Unit = Literal["reply", "token"]


@dataclass(frozen=True)
class Replies:
    """A micro-batch of replies under the policy being trained.

    `logp` [N, L] carries the gradient; `old_logp` [N, L] are numbers from before the step's first
    update; `mask` [N, L] is True on sampled tokens, nowhere in the row of a reply that is left out;
    `advantage` [N, 1], or [N, L] where the tokens of a reply have advantages of their own.
    """

    logp: Tensor
    old_logp: Tensor
    mask: Tensor
    advantage: Tensor

    def __post_init__(self) -> None:
        rows, width = self.mask.shape
        # [N] would spread over tokens instead of replies, without an error wherever N = L.
        if self.advantage.shape not in ((rows, 1), (rows, width)):
            raise ValueError(f"advantage is {list(self.advantage.shape)}, not [{rows}, 1] or [{rows}, {width}]")


@dataclass(frozen=True)
class Clip:
    """The ratio is held in [1 − low, 1 + high]."""

    low: float
    high: float


@dataclass(frozen=True)
class Terms:
    """`loss`: a sum (not a mean) over the micro-batch, to be divided by the update's normaliser.
    `ratio`, `clipped_low`, `clipped_high` [n]: one entry a ratio, for the log (no gradient)."""

    loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


@dataclass(frozen=True)
class Counts:
    """What an update uses in all its micro-batches together; a reply without tokens is not counted."""

    replies: int
    tokens: int
    max_new_tokens: int


class Objective(Protocol):
    UNIT: Unit
    """What a ratio belongs to, and with it an importance weight of the engine's mismatch."""

    def terms(self, replies: Replies, clip: Clip) -> Terms: ...

    def normaliser(self, counts: Counts) -> float:
        """What the summed loss of a whole update is divided by."""
