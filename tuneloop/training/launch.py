"""Starts a stage as several processes (ranks) on this machine and watches over them.

    torchrun --nproc-per-node 2 -m stages.train        does the same with torch's own launcher

One rank that ends early ends the run: the others would wait for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TAIL = 20
"""Lines of a failed rank's messages that are shown."""
GRACE = 3.0
"""Seconds that the others have, once one has failed, to fail too: who is to blame is asked then."""
LOST = 3
"""Exit status of a rank that ends because it lost another."""


_PR_SET_PDEATHSIG = 1


def launched() -> bool:
    """Whether this process is one of several ranks."""
    return "RANK" in os.environ


def end_with_the_launcher() -> None:
    """Let this rank be killed when the process that started it ends in whatever way (on Linux; elsewhere a launcher
    that is killed outright leaves its ranks behind)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def launch(module: str, count: int) -> int:
    """Run `python -m module` as `count` ranks; the exit status. Rank 0 speaks for all; the messages of
    another are shown if it is the one that fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the ranks end too
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / str(rank) for rank in range(count)]
        processes = []
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with open(said[rank], "wb") as log:
                quiet = {"stdout": subprocess.DEVNULL, "stderr": log} if rank else {}
                processes.append(subprocess.Popen([sys.executable, "-m", module], env=shared | own, **quiet))
        try:
            return _watch(processes, said)
        except KeyboardInterrupt:
            return 130
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _watch(processes: list[subprocess.Popen[bytes]], said: list[Path]) -> int:
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        states = [process.poll() for process in processes]
        if None not in states:
            break
        if deadline is None and any(states):
            deadline = time.monotonic() + GRACE
        time.sleep(0.05)
    if not any(states):
        return 0
    # Who was killed, else who failed by itself: not one that only lost the others.
    blame = {rank: 2 if state < 0 else state != LOST for rank, state in enumerate(states) if state}
    rank = max(blame, key=lambda rank: (blame[rank], -rank))
    status = states[rank]
    if rank == 0 and status == 2:  # a mistake that it has explained
        return status
    if rank:
        lines = said[rank].read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
        print("".join(f"rank {rank}: {line}\n" for line in lines), end="", file=sys.stderr)
    how = f"was killed ({signal.Signals(-status).name})" if status < 0 else f"ended with exit status {status}"
    print(
        f"[train] error: rank {rank} of {len(processes)} {how}, so the run was stopped; run the same command again: it "
        "continues from the last state that was saved",
        file=sys.stderr,
        flush=True,
    )
    return 1
