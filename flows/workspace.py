"""A workspace holds one run at a time, and is a git repository where experiments are wanted."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuneloop.errors import UserError

LOCK = Path(".state/flows/lock")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@contextmanager
def sole_run(workspace: Path, who: str) -> Iterator[int]:
    """Hold the workspace; yields the lock's descriptor. Raises UserError naming who holds it.

    The lock belongs to the open file: it is gone as soon as the last process that has it is.
    """
    path = workspace / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another run"
            raise UserError(
                f"{workspace}: {holder} is running here, and a workspace has one writer; "
                "wait for it to end, or cancel it"
            ) from None
        file.truncate(0)
        file.write(f"{who} (process {os.getpid()})")
        file.flush()
        yield file.fileno()


def check_name(name: str) -> str:
    """`name` if an experiment, a sweep or a member can be called so. Raises UserError."""
    if not _NAME.fullmatch(name) or name.endswith((".", ".lock")) or ".." in name:
        raise UserError(f"{name!r} is no usable name: letters, digits, '.', '_' and '-', a letter or digit first")
    return name


def git(folder: Path, *words: str) -> str:
    """What git says, stripped. Raises UserError with its last line of complaint."""
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode:
        complaint = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        raise UserError(f"{folder}: git {words[0]}: {complaint}")
    return done.stdout.strip()


def head(workspace: Path) -> str:
    """The commit that experiments start from. Raises UserError where there is none."""
    try:
        return git(workspace, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except UserError:
        raise UserError(
            f"{workspace}: an experiment starts from a git commit, and there is none here; "
            "`git init && git add --all && git commit`, or run without overrides and without a name"
        ) from None


def experiment_refs(workspace: Path) -> dict[str, str]:
    """The commit of every finished experiment by its git ref, those on the commit that is checked out last."""
    listed = git(workspace, "for-each-ref", "--format=%(objectname) %(refname)", "refs/exps").splitlines()
    found = {ref: commit for commit, ref in (line.split(" ", 1) for line in listed)}
    here = head(workspace)
    # refs/exps/AA/BBBB…/NAME, AABBBB… being the commit it started from; DVC's own are shorter.
    named = [ref for ref in found if len(ref.split("/")) == 5]
    return {ref: found[ref] for ref in sorted(named, key=lambda ref: "".join(ref.split("/")[2:4]) == here)}


def experiments(workspace: Path) -> dict[str, str]:
    """The commit of every finished experiment by its name; of two with one name, the one on the current commit."""
    return {ref.split("/")[-1]: commit for ref, commit in experiment_refs(workspace).items()}
