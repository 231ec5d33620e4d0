"""`tuneloop new-task NAME` writes three files into the clone in which it is run.

    tuneloop/tasks/NAME/__init__.py      tuneloop/tasks/NAME/records.jsonl      tests/tasks/test_NAME.py

It copies the task in `template/`, whose test names it: that one word is all that changes. Everything is written
beside its place first and renamed there, so that no half of a task is ever found.
"""

from __future__ import annotations

import argparse
import keyword
import re
import shutil
import tempfile
from pathlib import Path

import tuneloop
from tuneloop.errors import UserError

TEMPLATE = Path(__file__).parent / "template"
LONGEST = 40


def new_task_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tuneloop new-task`."""
    parser.add_argument("name", metavar="NAME", help="of the task and its folder: small letters, digits and _")


def run_new_task(options: argparse.Namespace) -> int:
    """Write the task and say what to do next."""
    records = write_task(options.name, Path.cwd())
    folder = f"tuneloop/tasks/{options.name}"
    print(f"{folder}/__init__.py        the tool, the messages, the reward: all that a task is")
    print(f"{folder}/records.jsonl      {records} sample records")
    print(f"tests/tasks/test_{options.name}.py")
    print("\nIt works as it is. Next (docs/your-task.md makes it your own):")
    print(f"  pytest tests/tasks/test_{options.name}.py")
    print(f"  dvc exp run -S task.name={options.name} -S boards.count={records}")
    print("  cat data/compare/summary.txt")
    return 0


def write_task(name: str, project: Path) -> int:
    """Write the task `name` into the clone at `project` and return how many sample records it has. Raises UserError,
    with nothing written, for a name that cannot be one or is taken, and for a folder that is no clone in use."""
    require_project(project)
    require_name(name, project)
    folder, test = project / "tuneloop" / "tasks" / name, project / "tests" / "tasks" / f"test_{name}.py"
    with tempfile.TemporaryDirectory(prefix=".new-task-", dir=project) as temporary:
        written = Path(temporary) / name
        written.mkdir()
        for file in ("__init__.py", "records.jsonl"):
            shutil.copyfile(TEMPLATE / file, written / file)
        text = (TEMPLATE / "test_template.py").read_text(encoding="utf-8")
        half = Path(temporary) / test.name
        half.write_text(text.replace('load_task("template")', f'load_task("{name}")'), encoding="utf-8")
        test.parent.mkdir(parents=True, exist_ok=True)
        half.rename(test)
        try:
            written.rename(folder)
        except OSError:
            test.unlink()
            raise
    return (TEMPLATE / "records.jsonl").read_bytes().count(b"\n")


def require_project(project: Path) -> None:
    """A task is part of tuneloop's own source tree: what a run depends on, DVC and the resume states see there."""
    if not (project / "tuneloop" / "tasks" / "contract.py").is_file() or not (project / "dvc.yaml").is_file():
        raise UserError(
            f"{project} is no clone of tuneloop: a task lives in tuneloop/tasks/, where every result that depends on "
            "it is tracked; run new-task in the folder of the clone"
        )
    used = Path(tuneloop.__file__).resolve().parents[1]
    if used != project.resolve():
        raise UserError(
            f"this command belongs to the tuneloop in {used}, which would not find a task in {project}; make this "
            "clone the one in use (`make venv`, or `pip install -e .` here) and run its command"
        )


def require_name(name: str, project: Path) -> None:
    """UserError for a name that cannot be a task's or is taken."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or len(name) > LONGEST:
        raise UserError(
            f"{name!r} cannot be a task's name: write small letters, digits and _, a letter first, at most {LONGEST}, "
            "and no word of Python's own"
        )
    # Here, so that `tuneloop doctor` runs where what tasks need is missing.
    from tuneloop.tasks import task_names

    taken = project / "tuneloop" / "tasks" / name
    if name in task_names() or taken.exists() or taken.with_suffix(".py").exists():
        raise UserError(f"{name!r} is taken (tuneloop/tasks/{name}); choose another name, or edit what is there")
    # Test files of one name in two folders are one module to pytest, and it refuses the second.
    if found := sorted((project / "tests").glob(f"**/test_{name}.py")):
        raise UserError(f"{name!r} is taken by {found[0].relative_to(project)}; choose another name")
