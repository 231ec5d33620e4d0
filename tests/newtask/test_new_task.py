"""`tuneloop new-task`: what it writes works at once, and nothing is left of what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tuneloop.newtask import command


@pytest.fixture(scope="module")
def clone(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone has that matters here: tuneloop, the tests' conftest, dvc.yaml."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(root / "tuneloop", folder / "tuneloop", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for name in ("dvc.yaml", "params.yaml", "pyproject.toml", "tests/conftest.py"):
        shutil.copyfile(root / name, folder / name)
    return folder


def run(clone: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd or clone,
        env={**os.environ, "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
    )


def new_task(clone: Path, *names: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run(clone, "-m", "tuneloop.cli", "new-task", *names, cwd=cwd)


def listing(folder: Path) -> set[Path]:
    return {p.relative_to(folder) for p in folder.rglob("*") if "__pycache__" not in p.parts}


def test_a_task_is_three_files_whose_test_passes_and_the_next_three_commands(clone):
    before = listing(clone)
    done = new_task(clone, "office")
    assert (done.returncode, done.stderr) == (0, "")
    written = {path for path in listing(clone) - before if (clone / path).is_file()}
    assert {str(path) for path in written} == {
        "tuneloop/tasks/office/__init__.py",
        "tuneloop/tasks/office/records.jsonl",
        "tests/tasks/test_office.py",
    }
    assert [line.strip() for line in done.stdout.splitlines()[-3:]] == [
        "pytest tests/tasks/test_office.py",
        "dvc exp run -S task.name=office -S boards.count=512",
        "cat data/compare/summary.txt",
    ]
    tested = run(clone, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/tasks/test_office.py")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "office" in run(clone, "-c", "import tuneloop.tasks as t; print(t.task_names())").stdout

    # The same name again changes nothing.
    before = {path: (clone / path).read_bytes() for path in written}
    again = new_task(clone, "office")
    assert again.returncode == 2
    assert "'office' is taken (tuneloop/tasks/office)" in again.stderr
    assert {path: (clone / path).read_bytes() for path in written} == before


@pytest.fixture
def project(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project that this process's tuneloop is taken to belong to."""
    (tmp_path / "tuneloop" / "tasks").mkdir(parents=True)
    (tmp_path / "tuneloop" / "tasks" / "contract.py").touch()
    (tmp_path / "tuneloop" / "__init__.py").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "dvc.yaml").touch()
    monkeypatch.setattr(command.tuneloop, "__file__", str(tmp_path / "tuneloop" / "__init__.py"))
    return tmp_path


@pytest.mark.parametrize("name", ["", "Office", "9lives", "two words", "a-b", "../up", "class", "a" * 41, "tâche"])
def test_a_name_that_no_task_can_have_is_refused_and_nothing_written(project, name):
    before = listing(project)
    with pytest.raises(command.UserError, match="cannot be a task's name"):
        command.write_task(name, project)
    assert listing(project) == before


@pytest.mark.parametrize("name", ["tictactoe", "contract", "mine", "params"])
def test_a_name_that_is_taken_by_a_task_a_module_or_a_test_is_refused(project, name):
    (project / "tuneloop" / "tasks" / "mine").mkdir()
    (project / "tests" / "test_params.py").touch()
    before = listing(project)
    with pytest.raises(command.UserError, match=f"'{name}' is taken"):
        command.write_task(name, project)
    assert listing(project) == before


@pytest.mark.parametrize(
    ("owner", "function", "call"),
    [
        (shutil, "copyfile", 1),
        (shutil, "copyfile", 2),
        (Path, "write_text", 1),
        (Path, "rename", 1),
        (Path, "rename", 2),
    ],
)
def test_nothing_is_left_of_a_task_that_could_not_be_written_whole(project, monkeypatch, owner, function, call):
    files = {p for p in listing(project) if (project / p).is_file()}
    really, calls = getattr(owner, function), []

    def failing(*arguments, **options):
        calls.append(arguments)
        if len(calls) == call:
            raise OSError(28, "No space left on device")
        return really(*arguments, **options)

    monkeypatch.setattr(owner, function, failing)
    with pytest.raises(OSError, match="No space left"):
        command.write_task("mine", project)
    assert {p for p in listing(project) if (project / p).is_file()} == files
    assert not (project / "tuneloop" / "tasks" / "mine").exists()
    assert not [p for p in project.iterdir() if p.name.startswith(".new-task")]


def test_outside_a_clone_and_in_a_clone_that_is_not_in_use_it_says_where_to_go(clone, tmp_path):
    outside = new_task(clone, "mine", cwd=tmp_path)
    assert outside.returncode == 2
    assert "is no clone of tuneloop" in outside.stderr and "Traceback" not in outside.stderr
    (tmp_path / "tuneloop" / "tasks").mkdir(parents=True)
    (tmp_path / "tuneloop" / "tasks" / "contract.py").touch()
    (tmp_path / "dvc.yaml").touch()
    script = "import sys; sys.path.remove(''); from tuneloop.cli import main; sys.exit(main(['new-task', 'mine']))"
    other = run(clone, "-c", script, cwd=tmp_path)
    assert other.returncode == 2
    assert f"belongs to the tuneloop in {clone}" in other.stderr and "pip install -e ." in other.stderr
    assert not (tmp_path / "tuneloop" / "tasks" / "mine").exists()
