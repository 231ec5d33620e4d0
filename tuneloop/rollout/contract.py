"""The engine contract: token ids in, sampled token ids with log-probabilities and finish reason out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """How replies are drawn. `greedy` takes the likeliest token and ignores the rest but
    `max_new_tokens`. `top_k` 0 and `top_p` 1 leave the distribution whole."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    greedy: bool = False


@dataclass(frozen=True)
class Reply:
    """One sampled completion.

    `ids` includes the end token where one was sampled (`finish_reason` "stop"); "length" means that
    the limit cut the reply. `logprobs[i]` is the log-probability (nats) of `ids[i]` in the whole
    distribution at the sampling temperature, before top-k and top-p cut it.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason


class Engine(Protocol):
    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        """For prompt b one reply a seed in `seeds[b]`. The same seed, prompt and weights give the
        same reply, whatever else is in the batch (up to rounding of the logits)."""

    def weights_changed(self) -> None:
        """To be called after the policy's weights changed: drops whatever was computed with the old ones."""


class Drawn(NamedTuple):
    """One token of one reply, the `index`th of those that `ticket` asked for. `finish_reason`: of its last one."""

    ticket: int
    index: int
    token: int
    logprob: float
    finish_reason: FinishReason | None


class Stepping(Protocol):
    """Replies that enter and leave between steps of one token. The same seed, prompt and weights give the reply
    that `Engine.generate` gives, whatever else is in flight (up to rounding of the logits). One thread uses it."""

    def fits(self, tokens: int, replies: int) -> bool:
        """Whether there is room for so many more replies, prompt and limit together of so many tokens. Always, where
        nothing is in flight."""

    def admit(self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling) -> int:
        """Begin one reply a seed; gives the ticket that they are drawn under. Raises ValueError for what it cannot
        compute, and nothing has begun then."""

    def step(self) -> list[Drawn]:
        """One more token of every reply whose prompt is computed. If it raises, `clear` must come next."""

    def cancel(self, ticket: int) -> None:
        """Give up what of the ticket's replies is still in flight."""

    def clear(self) -> None:
        """Give up every reply in flight."""

    def current(self) -> bool:
        """Whether the replies in flight were begun with the weights as they stand: else they must be given up."""


@runtime_checkable
class Steppable(Protocol):
    """An engine that can also compute token by token."""

    def stepping(self) -> Stepping: ...


def reply_seed(*parts: object) -> int:
    """A 64-bit seed from anything with a stable text (seed, stage, step, record id, sample)."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
