"""params.yaml, and git, which DVC does not run without."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tuneloop.doctor.finding import Finding, fail, ok, warn
from tuneloop.errors import UserError

if TYPE_CHECKING:
    from tuneloop.params import Params


def is_project(folder: Path) -> bool:
    """Whether there is anything here for a stage to read."""
    return (folder / "dvc.yaml").is_file() or (folder / "params.yaml").is_file()


def check_params(folder: Path) -> tuple[list[Finding], Params | None]:
    """params.yaml as the stages will read it (None if they would refuse it), and a line for every mistake."""
    path = folder / "params.yaml"
    try:
        from tuneloop.params import load_params

        params = load_params(path)
    except ModuleNotFoundError as error:
        return [fail("params.yaml", f"cannot be read without the package {error.name}", "make venv")], None
    except UserError as error:
        said = [line.removeprefix(f"{path}: ") for line in str(error).splitlines()]
        return [fail("params.yaml", line, f"correct it in {path}") for line in said], None
    return [ok("params.yaml", f"valid: {params.policy.source}, {params.train.steps} steps")], params


def check_git(folder: Path) -> Finding:
    """Whether DVC can run in `folder`: it wants a git repository, and for experiments a commit and a name."""
    if not shutil.which("git"):
        return fail("git", "is not installed", "install it (Debian, Ubuntu: apt-get install git); DVC needs it")
    inside = _git(folder, "rev-parse", "--is-inside-work-tree")
    if inside.returncode:
        said = inside.stderr.strip().splitlines()
        if said and "dubious ownership" in said[0]:
            return fail("git", said[0], f"git config --global --add safe.directory {folder}")
        return fail("git", f"{folder} is in no git repository, and DVC refuses to run there", "git init")
    if _git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").returncode:
        step = "git add --all && git commit -m start (experiments start from a commit; dvc repro does not)"
        return warn("git", "a repository without a commit", step)
    unnamed = [key for key in ("user.name", "user.email") if not _git(folder, "config", key).stdout.strip()]
    if unnamed:
        step = "; ".join(f"git config {key} ..." for key in unnamed)
        return warn("git", f"{' and '.join(unnamed)} not set: dvc exp run refuses, dvc repro does not need it", step)
    return ok("git", _git(folder, "--version").stdout.strip().removeprefix("git version "))


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, errors="replace", check=False)
