"""DVC's repository, cache and locks; whoever holds the workspace; git."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
import zc.lockfile

from flows.workspace import sole_run
from tuneloop.doctor import pipeline, project
from tuneloop.doctor.processes import named

NOBODY = 2**22 + 1
"""No process: above the largest number that Linux gives out (PID_MAX_LIMIT, 2²² on 64 bits)."""


@pytest.fixture
def repository(tmp_path):
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    (tmp_path / ".dvc" / "config").touch()
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


def table(folder, pid, mode="write"):
    info = {"pid": pid, "cmd": "dvc repro"}
    entry = {"write": {str(folder / "data"): info}} if mode == "write" else {"read": {str(folder / "data"): [info]}}
    (folder / pipeline.TABLE).write_text(json.dumps(entry))


def test_a_repository_at_rest_is_well_and_names_its_cache(repository):
    findings = {finding.name: finding for finding in pipeline.check_dvc(repository)}
    assert {finding.level for finding in findings.values()} == {"OK"}
    assert findings["dvc cache"].found == str(repository / ".dvc" / "cache")
    assert list(findings) == ["dvc", "dvc cache", "dvc lock", "workspace"]


def test_a_folder_without_dvc_fails_with_dvc_init(tmp_path):
    (finding,) = pipeline.check_dvc(tmp_path)
    assert finding.level == "FAIL"
    assert "dvc init" in finding.next_step


def test_a_broken_configuration_fails_with_what_dvc_says(repository):
    (repository / ".dvc" / "config").write_text("[core\n")
    finding = pipeline.check_cache(repository)
    assert finding.level == "FAIL"
    assert "config" in finding.found


def test_a_cache_that_cannot_be_made_fails(tmp_path):
    (tmp_path / "file").touch()
    assert pipeline.writable(tmp_path / "new" / "cache")
    assert not pipeline.writable(tmp_path / "file" / "cache")


def test_a_lock_counts_while_a_process_holds_it_and_not_afterwards(repository):
    held = zc.lockfile.LockFile(str(repository / pipeline.LOCK))  # what DVC itself locks with
    finding = pipeline.check_locks(repository)
    assert finding.level == "WARN"
    assert named(os.getpid()) in finding.found
    held.close()
    assert (repository / pipeline.LOCK).read_text().strip() == str(os.getpid())
    assert pipeline.check_locks(repository).level == "OK"


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_stage_at_work_is_named(repository, mode):
    table(repository, os.getpid(), mode)
    finding = pipeline.check_locks(repository)
    assert finding.level == "WARN"
    assert named(os.getpid()) in finding.found
    assert f"kill {os.getpid()}" in finding.next_step


@pytest.mark.parametrize("mode", ["read", "write"])
def test_what_ended_processes_left_is_no_fault(repository, mode):
    table(repository, NOBODY, mode)
    finding = pipeline.check_locks(repository)
    assert finding.level == "OK"
    assert "ended" in finding.found


@pytest.mark.parametrize("text", ["{", "[]", '{"write": {"x": 1}}'])
def test_a_broken_table_of_locks_fails_and_names_the_file(repository, text):
    (repository / pipeline.TABLE).write_text(text)
    finding = pipeline.check_locks(repository)
    assert finding.level == "FAIL"
    assert str(pipeline.TABLE) in finding.next_step


def test_a_run_from_prefect_holds_the_workspace_until_it_ends(repository):
    with sole_run(repository, "the flow run brave-lynx"):
        finding = pipeline.check_run(repository)
    assert finding.level == "WARN"
    assert "the flow run brave-lynx" in finding.found
    assert pipeline.check_run(repository).level == "OK"


def test_a_run_that_was_killed_is_a_warning_with_the_way_to_tidy_up(repository):
    (repository / pipeline.JOURNAL).parent.mkdir(parents=True)
    (repository / pipeline.JOURNAL).write_text("{}")
    finding = pipeline.check_run(repository)
    assert finding.level == "WARN"
    assert "tidies up" in finding.next_step


def git(folder, *words):
    subprocess.run(["git", *words], cwd=folder, check=True)


def test_git_warns_until_there_are_a_commit_and_a_name_for_the_next_one(repository, monkeypatch):
    # No settings but the repository's own: `dvc exp run` says "Git user name and email must be configured" there.
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    assert "without a commit" in project.check_git(repository).found
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "start")
    finding = project.check_git(repository)
    assert (finding.level, finding.next_step) == ("WARN", "git config user.name ...; git config user.email ...")
    git(repository, "config", "user.name", "a")
    git(repository, "config", "user.email", "a@b")
    assert project.check_git(repository).level == "OK"


def test_git_fails_outside_a_repository(tmp_path):
    finding = project.check_git(tmp_path)
    assert (finding.level, finding.next_step) == ("FAIL", "git init")


def test_a_machine_without_git_fails(repository, monkeypatch):
    monkeypatch.setenv("PATH", str(repository))
    finding = project.check_git(repository)
    assert finding.level == "FAIL"
    assert "not installed" in finding.found
