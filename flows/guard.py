"""Runs one command and leaves nothing of it behind, however its starter ends.

    python -I guard.py [--afterwards PROGRAM.py] COMMAND WORD…

The guard's standard input is a pipe that its starter holds open. When the pipe closes (the starter
closed it, or was killed without a chance to clean up) the guard ends the command's whole process
group: SIGINT, which Python programs clean up after, then SIGTERM, then SIGKILL. It also ends what the
command left behind after an ordinary end. Its exit status is the command's; 128 + n for signal n.

Only the standard library, and no package: it starts in some 20 ms.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = ((signal.SIGINT, 4.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 2.0))
"""What is sent, and for how many seconds its effect is awaited: 7 s at most."""

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main(words: list[str]) -> int:
    afterwards = words[1] if words[0] == "--afterwards" else None
    command = words[2:] if afterwards else words
    # The guard proper is no child of the starter: some (a Ray worker that ends) kill their children outright.
    if (inner := os.fork()) != 0:
        return _pass_on(inner)
    os.setsid()
    # A signal to the starter's group is the starter's to answer.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    _adopt_orphans()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_heed_signals)
    _let_go_of_output()
    abandoned = threading.Event()
    ender = threading.Thread(target=_wait_for_starter, args=(child.pid, abandoned), daemon=True)
    ender.start()
    code = child.wait()
    if abandoned.is_set():
        ender.join()
    _end(child.pid, PATIENCE[-1:] if abandoned.is_set() else PATIENCE)
    if afterwards and abandoned.is_set():
        subprocess.run([sys.executable, afterwards], stdin=subprocess.DEVNULL)
    return code if code >= 0 else 128 - code


def _pass_on(inner: int) -> int:
    """Wait for the guard proper; its exit status."""
    _let_go_of_output()
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
    return code if code >= 0 else 128 - code


def _let_go_of_output() -> None:
    """The command alone holds its output open: who reads it sees its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)


def _heed_signals() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_DFL)


def _adopt_orphans() -> None:
    """On Linux, descendants whose parent died become this process's children: they can be found and reaped."""
    if sys.platform.startswith("linux"):
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_starter(group: int, abandoned: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    abandoned.set()
    _end(group, PATIENCE)


def _end(group: int, patience: tuple[tuple[signal.Signals, float], ...]) -> None:
    """Signal the group, and every orphan that left it, until none is alive."""
    for number, seconds in patience:
        if not _alive(group):
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        for pid in _children() - {group}:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        until = time.monotonic() + seconds
        while _alive(group) and time.monotonic() < until:
            time.sleep(0.02)


def _alive(group: int) -> bool:
    _reap(group)
    if _children() - {group}:
        return True
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _reap(leader: int) -> None:
    """Collect adopted children that have ended; the leader's status belongs to `child.wait()`."""
    for pid in _children() - {leader}:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(pid) for pid in listing.read_text().split()}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
