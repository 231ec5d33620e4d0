"""What every stage does at its edges: say when it starts and ends, and turn a user's mistake into
one message and a non-zero exit status."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tuneloop.errors import UserError


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Run a stage's body. UserError: its text on stderr, exit status 2. Ctrl-C: exit status 130."""
    started = time.perf_counter()
    print(f"[{name}] started", flush=True)
    try:
        yield
    except UserError as error:
        print(f"[{name}] error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"[{name}] interrupted", file=sys.stderr, flush=True)
        sys.exit(130)
    print(f"[{name}] ended after {time.perf_counter() - started:.1f} s", flush=True)
