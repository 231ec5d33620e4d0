"""`tuneloop doctor` as a person at a shell, or a program, meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from importlib.metadata import version

import pytest

from tuneloop.cli import main
from tuneloop.doctor import examine
from tuneloop.doctor.command import in_json, in_lines
from tuneloop.doctor.finding import fail, ok, warn
from tuneloop.doctor.project import check_params

LEVELS = {"OK", "WARN", "FAIL"}


def doctor(folder, python, environment, *more):
    """(exit status, standard output) of the command in `folder`; nothing may be said on standard error."""
    ran = subprocess.run(
        [python, "-m", "tuneloop.cli", "doctor", *more],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    return ran.returncode, ran.stdout


@pytest.fixture
def project(tmp_path, root, write_params):
    """A project's folder as a fresh clone has it: params.yaml, dvc.yaml, a DVC repository in git, one commit."""
    write_params(tmp_path)
    (tmp_path / "dvc.yaml").write_bytes((root / "dvc.yaml").read_bytes())
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").touch()
    for words in (
        ["init", "-q"],
        ["config", "user.name", "a"],
        ["config", "user.email", "a@b"],
        ["commit", "-q", "--allow-empty", "-m", "a"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture(scope="module")
def bare(tmp_path_factory, root):
    """A Python without any package, that finds tuneloop's own files alone: (program, environment)."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    (home / "path").mkdir()
    for name in ("tuneloop", "pyproject.toml"):
        (home / "path" / name).symlink_to(root / name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return str(home / "venv" / "bin" / "python"), kept | {"PYTHONPATH": str(home / "path")}


def by_name(text):
    return {finding["name"]: finding for finding in json.loads(text)["findings"]}


def test_a_project_that_is_ready_fails_nowhere_and_every_part_is_reported(project, environment):
    status, out = doctor(project, sys.executable, environment, "--json")
    tree = json.loads(out)
    assert list(tree) == ["schema", "failed", "findings"]
    assert (tree["schema"], tree["failed"], status) == (1, False, 0)
    for finding in tree["findings"]:
        assert list(finding) == ["name", "level", "found", "next_step"]
        assert finding["level"] in LEVELS
        assert finding["found"]
        assert bool(finding["next_step"]) is (finding["level"] != "OK")
    parts = ["python", "packages", "params.yaml", "memory", "disk", "cpu", "gpu", "torch", "engine", "model"]
    parts += ["git", "dvc", "dvc cache", "dvc lock", "workspace", "prefect", "prefect home", "prefect port"]
    names = [finding["name"] for finding in tree["findings"]]
    assert [name for name in names if name != "gpu memory"] == parts  # that one only where there is a GPU
    assert version("torch") in by_name(out)["torch"]["found"]


def test_without_any_package_each_is_a_line_and_nothing_breaks(project, bare, root):
    status, out = doctor(project, *bare, "--json")
    found = by_name(out)
    assert status == 1
    for package in ("torch", "dvc", "prefect", "pydantic", "great-expectations", "ruamel.yaml"):
        assert found[f"package {package}"]["level"] == "FAIL"
        assert "make venv" in found[f"package {package}"]["next_step"]
    for part in ("params.yaml", "torch", "dvc", "prefect"):
        assert found[part]["level"] == "FAIL"
    assert "pydantic" in found["params.yaml"]["found"]
    assert found["git"]["level"] == found["disk"]["level"] == "OK"
    assert "could not be checked" not in out


def test_a_broken_params_file_fails_with_its_mistakes_and_the_rest_is_still_checked(project, monkeypatch, capsys):
    (project / "params.yaml").write_text("policy: [\n")
    monkeypatch.chdir(project)
    monkeypatch.setattr(examine, "look_at_torch", examine.Torch)  # spares the seconds of another import
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("FAIL")] == [line for line in lines if "params.yaml  " in line]
    assert any(line.startswith("OK") and "dvc cache" in line for line in lines)
    assert lines[-1].startswith("1 FAIL")


def test_a_model_folder_that_is_missing_fails_before_anything_is_run(project, write_params):
    write_params(project, {"policy.source": "./models/mine"})
    (finding,), params = check_params(project)
    assert (finding.level, params) == ("FAIL", None)
    assert "./models/mine" in finding.found


def test_a_terminal_that_knows_only_ascii_gets_every_line(tmp_path, bare):
    python, environment = bare
    status, out = doctor(tmp_path, python, environment | {"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"})
    assert (status, out.isascii()) == (1, True)
    assert "-> make venv" in out


def test_a_reader_who_leaves_early_is_no_error(tmp_path, bare):
    python, environment = bare
    command = [python, "-m", "tuneloop.cli", "doctor"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as ran:
        ran.stdout.close()
        assert ran.stderr.read() == b""
    assert ran.returncode == 141  # as of a process that SIGPIPE ended


def test_outside_a_project_the_machine_is_examined_all_the_same(tmp_path, bare):
    _, out = doctor(tmp_path, *bare, "--json")
    found = by_name(out)
    assert found["project"]["level"] == "WARN"
    assert {"python", "memory", "disk", "cpu", "gpu", "torch", "prefect"} <= set(found)
    assert not {"params.yaml", "git", "dvc", "model", "engine"} & set(found)


def test_a_check_that_breaks_is_a_line_and_the_others_go_on(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("surprise")

    monkeypatch.setattr(examine.machine, "check_disk", broken)
    monkeypatch.setattr(examine, "look_at_torch", examine.Torch)
    found = {finding.name: finding for finding in examine.examine(tmp_path)}
    assert found["disk"].level == "FAIL"
    assert "RuntimeError: surprise" in found["disk"].found
    assert found["cpu"].level in LEVELS


def test_lines_say_level_name_finding_and_next_step_and_sum_up():
    assert in_lines([ok("a", "fine"), warn("long name", "so-so", "do this"), fail("b", "bad", "do that")]) == (
        "OK    a          fine\n"
        "WARN  long name  so-so\n"
        "                 -> do this\n"
        "FAIL  b          bad\n"
        "                 -> do that\n"
        "1 FAIL, 1 WARN"
    )
    assert in_lines([ok("a", "fine")]).endswith("\nall is well")


def test_json_says_failed_exactly_where_something_fails():
    assert json.loads(in_json([ok("a", "b"), warn("c", "d", "e")]))["failed"] is False
    assert json.loads(in_json([ok("a", "b"), fail("c", "d", "e")]))["failed"] is True


@pytest.mark.parametrize("arguments", [["--jsn"], ["now"]])
def test_bad_arguments_are_status_2(capsys, arguments):
    assert main(["doctor", *arguments]) == 2
    assert capsys.readouterr().err.startswith("tuneloop: error: ")
