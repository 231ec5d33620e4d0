"""What an objective is given, and what it gives back.

Shape suffixes: N replies of a micro-batch · L longest reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Unit = Literal["reply", "token"]


@dataclass(frozen=True)
class Replies:
    """A micro-batch of replies under the policy being trained.

    `logp` [N, L] carries the gradient; `old_logp` [N, L] are numbers from before the step's first
    update; `mask` [N, L] is True on sampled tokens, nowhere in the row of a reply that is left out;
    `advantage` [N, 1], or [N, L] where the tokens of a reply have advantages of their own. Preferences need
    `base_logp` [N, L], the base policy's numbers, and `rows`, how many consecutive ones of the N belong to each group.
    """

    logp: Tensor
    old_logp: Tensor
    mask: Tensor
    advantage: Tensor
    base_logp: Tensor | None = None
    rows: Sequence[int] | None = None

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
    `ratio`, `clipped_low`, `clipped_high` [n]: one entry a ratio, for the log (no gradient); `pairs` [pairs, 2]: of
    preferences, log πθ/πbase (nats) of the chosen and the rejected reply."""

    loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    pairs: Tensor | None = None


def no_ratio(loss: Tensor, pairs: Tensor | None = None) -> Terms:
    """The terms of an objective without a ratio to the policy that sampled."""
    none = loss.detach().new_zeros(0)
    return Terms(loss, none, none.bool(), none.bool(), pairs)


@dataclass(frozen=True)
class Counts:
    """What an update uses in all its micro-batches together; a reply without tokens is not counted, nor is a group
    without any."""

    replies: int
    tokens: int
    max_new_tokens: int
    groups: int = 0


class Objective(Protocol):
    UNIT: Unit
    """What a ratio belongs to, and with it an importance weight of the engine's mismatch."""

    def terms(self, replies: Replies, clip: Clip) -> Terms: ...

    def normaliser(self, counts: Counts) -> float:
        """What the summed loss of a whole update is divided by."""
