"""What a run of DVC leaves that it should not, and how that is put right.

    python tidy.py      # in the workspace; the guard runs it after it had to end DVC

A journal lies in the workspace while DVC runs: how params.yaml stood, and which stage is running. From
it anyone can tidy up after a run that was killed: the flow, the guard, or the next run. This file needs
nothing of the package, so that it starts wherever the guard is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

JOURNAL = Path(".state/flows/running.json")
PARAMS, PIPELINE, LOCKS, DATA = Path("params.yaml"), Path("dvc.yaml"), Path(".dvc/tmp/rwlock"), Path("data")


def begin(workspace: Path, expected: Mapping[str, Any] | None) -> None:
    """Open the journal. `expected`: what params.yaml will hold while an experiment runs; None if it stays as it is."""
    text = None if expected is None else (workspace / PARAMS).read_bytes().decode("utf-8")
    _write(workspace, {"params": text, "expected": expected, "stage": None})


def note_stage(workspace: Path, name: str | None) -> None:
    """The stage that runs now; None once its outs are whole."""
    _write(workspace, _read(workspace) | {"stage": name})


def tidy(workspace: Path) -> list[str]:
    """Close the journal: remove the outs of the stage that was cut short, temporary files and the locks of processes
    that are gone, and put params.yaml back. Returns what people should know. Does nothing without a journal."""
    journal = _read(workspace)
    if not journal:
        return []
    if journal["stage"] is not None:
        for out in stage_outs(workspace, journal["stage"]):
            _remove(workspace / out)
    for left_over in (workspace / DATA).glob("**/.*.tmp"):
        _remove(left_over)
    _unlock(workspace / LOCKS)
    said = _restore(workspace / PARAMS, journal)
    (workspace / JOURNAL).unlink()
    return said


def stage_outs(workspace: Path, name: str) -> list[str]:
    """The paths that dvc.yaml lists as what the stage makes."""
    tree = YAML(typ="safe").load((workspace / PIPELINE).read_text(encoding="utf-8"))
    stage = tree.get("stages", {}).get(name, {})
    listed = [out for kind in ("outs", "metrics", "plots") for out in stage.get(kind, [])]
    return [path for out in listed for path in ([out] if isinstance(out, str) else list(out))]


def _restore(path: Path, journal: Mapping[str, Any]) -> list[str]:
    """`dvc exp run -S` writes its values into params.yaml; the next run without overrides is to run what is written."""
    if journal["params"] is None:
        return []
    before, now = journal["params"].encode("utf-8"), path.read_bytes()
    if now == before:
        return []
    if YAML(typ="safe").load(now) != journal["expected"]:
        return [f"{path.name} was edited during the run and is left as it is now"]
    path.write_bytes(before)
    return []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _unlock(path: Path) -> None:
    """Take the entries of processes that have ended out of DVC's lock table."""
    try:
        table: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    writers = {out: info for out, info in table.get("write", {}).items() if _exists(info["pid"])}
    readers = {dep: [info for info in infos if _exists(info["pid"])] for dep, infos in table.get("read", {}).items()}
    kept = {"write": writers, "read": {dep: infos for dep, infos in readers.items() if infos}}
    path.write_text(json.dumps({mode: entries for mode, entries in kept.items() if entries}), encoding="utf-8")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(workspace: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return json.loads((workspace / JOURNAL).read_text(encoding="utf-8"))
    return {}


def _write(workspace: Path, journal: Mapping[str, Any]) -> None:
    path = workspace / JOURNAL
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(journal), encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    tidy(Path.cwd())
