"""DVC: the repository, its cache and its locks; and who else holds this workspace."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tuneloop.doctor.finding import Finding, fail, ok, warn
from tuneloop.doctor.processes import named
from tuneloop.doctor.versions import installed

LOCK, TABLE = Path(".dvc/tmp/lock"), Path(".dvc/tmp/rwlock")
RUN, JOURNAL = Path(".state/flows/lock"), Path(".state/flows/running.json")
"""As flows/workspace.py and flows/tidy.py write them."""


def check_dvc(folder: Path) -> list[Finding]:
    """Whether `dvc repro` can start here, and whether someone else is at it."""
    if installed("dvc") is None:
        return [fail("dvc", "is not installed", "make venv")]
    if not (folder / ".dvc").is_dir():
        return [fail("dvc", f"{folder} is no DVC repository", "dvc init (after git init)")]
    return [ok("dvc", f"{installed('dvc')}, a repository"), check_cache(folder), check_locks(folder), check_run(folder)]


def check_cache(folder: Path) -> Finding:
    """The folder that keeps every version of data and models."""
    words = [sys.executable, "-m", "dvc", "cache", "dir"]
    quiet = dict(os.environ) | {"DVC_NO_ANALYTICS": "1"}
    asked = subprocess.run(words, cwd=folder, env=quiet, capture_output=True, text=True, errors="replace", check=False)
    if asked.returncode:
        said = asked.stderr.strip().splitlines() or [f"status {asked.returncode}"]
        return fail("dvc cache", f"dvc does not start here: {said[-1]}", "see .dvc/config; make venv")
    cache = Path(asked.stdout.strip())
    if not writable(cache):
        return fail("dvc cache", f"{cache} cannot be written", "change its owner, or dvc cache dir /another/folder")
    return ok("dvc cache", str(cache))


def check_locks(folder: Path) -> Finding:
    """DVC's own locks. The lock file stays when DVC ends, so what counts is whether a process holds it."""
    held = _held(folder / LOCK)
    if held is not None:
        who = named(int(held)) if held.isdigit() else "another process"
        return warn("dvc lock", f"{who} is running here", "wait for it: dvc repro --wait-for-lock")
    try:
        text = (folder / TABLE).read_text(encoding="utf-8")
    except OSError:
        return ok("dvc lock", "free")
    try:
        owners = _owners(json.loads(text)) if text.strip() else {}
    except (ValueError, TypeError, KeyError, AttributeError):
        return fail("dvc lock", f"{TABLE} is broken, and DVC refuses to start", f"rm {TABLE}")
    alive = [pid for pid in owners if _exists(pid)]
    if alive:
        return warn(
            "dvc lock", f"{named(alive[0])} is at {owners[alive[0]]}", f"wait for it, or end it: kill {alive[0]}"
        )
    if owners:
        return ok("dvc lock", f"{len(owners)} left by processes that have ended; DVC takes them away itself")
    return ok("dvc lock", "free")


def check_run(folder: Path) -> Finding:
    """A workspace has one writer: a run started through Prefect, or by hand."""
    holder = _held(folder / RUN)
    if holder is not None:
        return warn("workspace", f"{holder or 'another run'} is running here", "wait for it to end, or cancel it")
    if (folder / JOURNAL).is_file():
        return warn(
            "workspace", "a run was killed here", "start a run in Prefect: it tidies up first (or python flows/tidy.py)"
        )
    return ok("workspace", "free")


def writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, or in the nearest folder above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _held(path: Path) -> str | None:
    """What the lock file says of its holder, if a process holds it; None if nobody does."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            try:
                # Shared and at once let go: it only fails where another process has the file to itself.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip()
    except OSError:
        return None
    return None


def _owners(table: dict[str, Any]) -> dict[int, str]:
    """A path that each process in DVC's table has locked."""
    found = {int(info["pid"]): path for path, info in table.get("write", {}).items()}
    return {int(info["pid"]): path for path, infos in table.get("read", {}).items() for info in infos} | found


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
