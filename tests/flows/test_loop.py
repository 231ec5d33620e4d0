"""The loop as its deployment runs it: a real server, pool and worker, real stages with tiny numbers.

The tests share one server and one workspace, and follow one another: a run is cancelled in the middle
of training while a second one waits, which then continues; later runs find its results.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling
from served import COMPUTES, STEPS, Served, nothing_left, resume_states, wait_for_training, wait_until

from flows.loop import loop

pytestmark = pytest.mark.slow

STAGES = ["boards", "check_boards", "policy", "baseline", "train", "retest", "check_rewards", "compare"]
LIMIT = 15.0
"""Seconds within which nothing of a cancelled run is left (the issue's own number)."""


@dataclass(frozen=True)
class Story:
    """What was seen of two runs started one after the other, the first of which was cancelled."""

    cancelled: UUID
    seconds_to_end: float
    second_while_first_ran: str | None
    refused: str
    left_states: set[str]
    finished: UUID


@pytest.fixture(scope="module")
def story(served: Served) -> Story:
    first = served.start("loop")
    wait_for_training(served, first)
    second = served.start("loop")
    with served.watching():
        refused = loop(return_state=True)
    waiting = served.client.read_flow_run(second).state
    # The second run's processes appear as soon as the first's are gone: look for the first's alone.
    theirs = served.pids(*COMPUTES)
    served.client.set_flow_run_state(first, Cancelling())
    seconds = wait_until(lambda: not any(psutil.pid_exists(pid) for pid in theirs), 60)
    left = resume_states(served.workspace)
    served.ended(first)
    served.ended(second)
    return Story(first, seconds, waiting.name, refused.message or "", left, second)


def test_a_run_cancelled_in_training_leaves_nothing_and_keeps_the_trained_steps(served: Served, story: Story) -> None:
    assert served.client.read_flow_run(story.cancelled).state.name == "Cancelled"
    assert story.seconds_to_end < LIMIT
    assert story.left_states
    assert list(served.tasks(story.cancelled)) == STAGES[:5]


def test_a_second_run_waits_for_the_first_and_one_by_hand_is_refused(served: Served, story: Story) -> None:
    assert story.second_while_first_ran in ("Scheduled", "Late", "Pending", "AwaitingConcurrencySlot")
    first = served.client.read_flow_run(story.cancelled).name
    assert re.search(rf"flow run {first} \(process \d+\) is running here", story.refused)
    assert story.refused.endswith("a workspace has one writer; wait for it to end, or cancel it")
    assert "\n" not in story.refused


def test_the_next_run_continues_the_training_and_ends_in_a_verdict(served: Served, story: Story) -> None:
    run = served.client.read_flow_run(story.finished)
    assert run.state.name == "Completed", served.log("worker")
    tasks = served.tasks(story.finished)
    assert list(tasks) == STAGES
    assert [tasks[stage].state_name for stage in STAGES] == ["Cached"] * 4 + ["Completed"] * 4
    assert tasks["train"].total_run_time > timedelta(seconds=1)
    messages = served.messages(story.finished)
    assert any(f"of {STEPS}" in line and line.startswith("continuing after step") for line in messages)
    assert any(line.startswith("[train] ended") for line in messages)
    summary = (served.workspace / "data/compare/summary.txt").read_text(encoding="utf-8")
    assert "".join(run.state.message.split()) in "".join(summary.split())


def test_progress_table_and_verdict_are_artifacts_with_links_that_open(served: Served, story: Story) -> None:
    artifacts = served.artifacts(story.finished)
    progress = artifacts["progress-train"]
    assert float(progress.data) == 100.0
    assert progress.description.startswith(f"train: step {STEPS} of {STEPS}, reward ")
    rows = json.loads(artifacts["before-after"].data)
    compared = json.loads((served.workspace / "data/compare/metrics.json").read_text())
    assert rows[0]["measure"] == "reward"
    assert rows[0]["after"].startswith(f"{compared['sampled']['reward']['after']['value']:+.3f} [")
    text = artifacts["verdict"].data
    assert compared["verdict"]["sentence"] in text
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert {Path(link).name for link in links} >= {"report.html", "before_after.png", "reward.png"}
    for link in links:
        with urllib.request.urlopen(link, timeout=5) as found:
            assert found.read() == _original(served.workspace, link).read_bytes()


def _original(workspace: Path, link: str) -> Path:
    name = Path(link).name
    return workspace / "data/compare" / (name if name.endswith("html") else f"plots/{name}")


def test_the_first_stage_comes_within_three_seconds(served: Served, story: Story) -> None:
    """The quicker of two runs; on a machine so busy that DVC alone needs longer, within twice that."""
    waits = [
        (served.tasks(run)["boards"].start_time - served.client.read_flow_run(run).start_time).total_seconds()
        for run in (story.cancelled, story.finished)
    ]
    started = time.monotonic()
    alone = [sys.executable, "-m", "dvc", "repro", "boards"]
    subprocess.run(alone, cwd=served.workspace, env=dict(served.variables), check=True, capture_output=True)
    assert min(waits) < max(3.0, 2 * (time.monotonic() - started))


def test_a_wrong_key_or_value_is_refused_before_anything_runs(served: Served, story: Story) -> None:
    run = served.ended(served.start("loop", overrides={"train": {"stepz": 4}}))
    assert run.state.name == "Failed"
    assert "train.stepz: there is no such key; the nearest is train.steps" in run.state.message
    assert served.tasks(run.id) == {}
    with pytest.raises(PrefectHTTPStatusError, match="less than the minimum of 1"):
        served.start("loop", overrides={"train": {"steps": 0}})


def test_a_schedule_of_one_minute_fires_and_its_run_is_an_experiment(served: Served, story: Story) -> None:
    deployment = served.client.read_deployment_by_name("loop/loop")
    assert [schedule.active for schedule in deployment.schedules] == [False], "nightly, off until it is switched on"
    params = (served.workspace / "params.yaml").read_bytes()
    every_minute = IntervalSchedule(interval=timedelta(minutes=1), anchor_date=datetime.now(UTC) + timedelta(seconds=8))
    _post_schedule(served, deployment.id, every_minute, {"experiment": "scheduled"})
    try:
        wait_until(lambda: _scheduled_runs(served), 120, lambda: served.log("server"))
        run = served.ended(_scheduled_runs(served)[0])
    finally:
        _delete_schedules(served, deployment.id)
    assert run.auto_scheduled
    assert run.state.name == "Completed", run.state.message
    tasks = served.tasks(run.id)
    assert [tasks[stage].state_name for stage in STAGES] == ["Cached"] * 8
    named = [sys.executable, "-m", "dvc", "exp", "list", "--name-only"]
    done = subprocess.run(named, cwd=served.workspace, env=dict(served.variables), capture_output=True, text=True)
    assert "scheduled" in done.stdout.split()
    assert (served.workspace / "params.yaml").read_bytes() == params


def _post_schedule(served: Served, deployment: UUID, schedule: IntervalSchedule, parameters: dict) -> None:
    wanted = DeploymentScheduleCreate(schedule=schedule, active=True, parameters=parameters)
    served.client.request(
        "POST",
        "/deployments/{id}/schedules",
        path_params={"id": deployment},
        json=[wanted.model_dump(mode="json", exclude_unset=True)],
    ).raise_for_status()


def _delete_schedules(served: Served, deployment: UUID) -> None:
    for schedule in served.client.read_deployment_by_name("loop/loop").schedules:
        if schedule.active:
            served.client.delete_deployment_schedule(deployment, schedule.id)


def _scheduled_runs(served: Served) -> list[UUID]:
    return [run.id for run in served.client.read_flow_runs() if run.auto_scheduled and run.start_time is not None]


def test_sigterm_to_the_worker_ends_the_run_and_another_worker_takes_over(served: Served, story: Story) -> None:
    run = served.start("loop", overrides={"train": {"lr": 2e-3}}, experiment="stopped")
    wait_for_training(served, run)
    (worker,) = served.pids("prefect worker start", besides="guard.py")
    os.kill(worker, signal.SIGTERM)
    seconds = wait_until(lambda: not served.computing(), 60)
    assert seconds < LIMIT
    assert served.ended(run).state.name == "Crashed"
    nothing_left(served)
