"""Progress of long work: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

LOG_SECONDS = 10.0
"""At most one line in so many seconds, and one at the end."""


class Progress:
    """`with Progress("train", 400) as progress: progress.advance(reward=0.4)`."""

    def __init__(self, label: str, total: int, done: int = 0):
        self.label, self.total, self.done = label, total, done
        self.first, self.started = done, None  # both are set when the first piece is done
        self.said = time.monotonic()
        self.bar = tqdm(total=total, initial=done, desc=label, file=sys.stderr) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    def advance(self, by: int = 1, **numbers: float) -> None:
        """`by` more are done; `numbers` are shown beside the count."""
        now = time.monotonic()
        self.done += by
        if self.started is None:
            # What came before the first piece (loading, set-up) says nothing of how long a piece takes.
            self.first, self.started = self.done, now
        words = {name: f"{value:.3f}" for name, value in numbers.items()}
        if self.bar is not None:
            self.bar.set_postfix(words, refresh=False)
            self.bar.update(by)
            return
        if self.done >= self.total or (self.done > self.first and now - self.said >= LOG_SECONDS):
            self.said = now
            left = (now - self.started) / max(1, self.done - self.first) * (self.total - self.done)
            shown = "".join(f" {name}={word}" for name, word in words.items())
            print(f"[{self.label}] {self.done}/{self.total}{shown} left={left:.0f}s", flush=True)
