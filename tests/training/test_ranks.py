"""Training on several ranks: the same numbers as on one, whatever the shares; two real processes on the CPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from ranks_script import results, trainer_of

from stages import train as train_stage
from tuneloop.params import parse_params

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(GPUS == 1, reason="two ranks want two GPUs, or none"),
]
EXACT = 1e-4 if GPUS else 1e-5
"""Share of a gradient's norm: how sums are split rounds otherwise, on a GPU more."""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Three groups an update and one a micro-batch: the second rank has fewer of them, in the last update of a step
# often none.
UNEVEN = {
    "train.steps": 3,
    "train.boards_per_step": 5,
    "train.updates_per_step": 2,
    "train.micro_batch_replies": 4,
    "train.keep_replies_every": 1,
    "train.kl_coefficient": 0.1,
    "train.old_logprobs": "trainer",
    "train.visit": "unsettled",
}
ADAPTERS = {"train.lora.rank": 3, "train.lora.alpha": 6, "train.lr": 5e-3}
RUNS = {
    "plain": UNEVEN,
    "adapters": UNEVEN
    | {
        "train.lora.rank": 3,
        "train.lora.alpha": 6,
        "train.lr": 5e-3,
        "train.checkpoint_layers": True,
        "train.steps": 2,
    },
    "pairs": UNEVEN | {"train.algorithm": "dpo", "train.kl_coefficient": 0.0, "train.old_logprobs": "engine"},
    "continued": UNEVEN,
}
BY_LAYER = ("adapters", "continued")
"""Runs whose layers are made whole one by one, like those of a large model."""


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_tree: Callable[..., dict[str, Any]],
    tiny_records: tuple[list, list],
    tiny_policy: Path,
    environment: dict[str, str],
) -> Callable[[str], tuple[dict[str, Any], dict[str, Any]]]:
    """`found(name)`: what a run gave on one rank (here) and on two (in processes of their own). The run "continued"
    goes on, on two ranks, from the state that "plain" had on one after its first step."""
    folder = tmp_path_factory.mktemp("ranks")
    trees = {name: tiny_tree(changes) for name, changes in RUNS.items()}
    alone = {
        name: results(trainer_of(tiny_policy, tiny_records, parse_params(trees[name], name)))
        for name in RUNS
        if name != "continued"
    }
    torch.save(alone["plain"]["after_one"], folder / "state.pt")
    alone["continued"] = alone["plain"]
    setting = {
        "policy": str(tiny_policy),
        "records": tiny_records,
        "runs": trees,
        "by_layer": BY_LAYER,
        "from": {"continued": "state.pt"},
    }
    torch.save(setting, folder / "setting.pt")
    script = Path(__file__).with_name("ranks_script.py")
    done = subprocess.run([*TORCHRUN, str(script), str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return lambda name: (alone[name], torch.load(folder / f"{name}.pt", weights_only=True))


def assert_close(one: Any, other: Any, share: float) -> None:
    """Equal tensors, up to `share` of their norm; rounding in float32 is 6e-8 a number."""
    assert one.shape == other.shape
    assert (one - other).norm() <= share * one.norm().clamp_min(1e-12), (one, other)


@pytest.mark.parametrize("name", ["plain", "adapters", "pairs"])
def test_the_first_updates_gradient_and_loss_are_those_of_one_rank(name: str, found: Callable) -> None:
    one, two = found(name)
    assert len(one["gradient"]) == len(two["gradient"])
    for a, b in zip(one["gradient"], two["gradient"]):
        assert_close(a, b, EXACT)
    columns = ("ratio_mean", "ratio_std", "clip_low", "entropy", "kl", "grad_norm", "weights_changed")
    if name == "pairs":
        columns = ("loss", "log_ratio_margin", "entropy", "grad_norm", "weights_changed")
    for column in columns:
        rows = [run["tables"]["history"][0][column] for run in (one, two)]
        assert rows[1] == pytest.approx(rows[0], rel=1e-4, abs=1e-6), column


@pytest.mark.parametrize("name", ["plain", "adapters"])
def test_the_replies_and_rewards_of_every_step_are_those_of_one_rank(name: str, found: Callable) -> None:
    one, two = found(name)
    assert one["tables"]["replies"] == two["tables"]["replies"]
    assert [row["reward"] for row in one["tables"]["evaluations"]] == [
        row["reward"] for row in two["tables"]["evaluations"]
    ]
    assert len(one["tables"]["replies"]) == len(one["tables"]["history"]) * 5 * 4


@pytest.mark.parametrize("name", ["plain", "adapters", "pairs", "continued"])
def test_a_run_ends_in_the_weights_of_one_rank_and_in_a_state_of_the_same_form(name: str, found: Callable) -> None:
    one, two = (run["end"] for run in found(name))
    assert one["model"].keys() == two["model"].keys()
    for key, value in one["model"].items():
        assert_close(value, two["model"][key], 10 * EXACT)
    for index, numbers in one["optimizer"]["state"].items():
        for key, value in numbers.items():
            assert_close(value, two["optimizer"]["state"][index][key], 100 * EXACT)
    assert one["visits"] == two["visits"]


def test_a_state_of_two_ranks_is_continued_by_one(
    found: Callable, tiny_tree: Callable, tiny_records: tuple, tiny_policy: Path
) -> None:
    one, two = found("plain")
    trainer = trainer_of(tiny_policy, tiny_records, parse_params(tiny_tree(UNEVEN), "continued"))
    trainer.restore(two["after_one"])
    end = results(trainer)["end"]
    for key, value in one["end"]["model"].items():
        assert_close(value, end["model"][key], 10 * EXACT)


# The stage


@pytest.fixture
def here(workspace: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The workspace, in which `train_stage.main()` runs as `python -m stages.train` does, launcher included."""
    monkeypatch.chdir(workspace)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGTERM)
    yield workspace
    signal.signal(signal.SIGTERM, before)


def newest_state(workspace: Path) -> str:
    return max((path.name for path in (workspace / ".state" / "train").glob("*/step-*.pt")), default="")


def test_the_stage_starts_its_ranks_itself_and_writes_what_one_rank_writes(
    here: Path, write_params: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    written = []
    for ranks in (1, 2):
        write_params(here, {"machine.ranks": ranks, "train.lora.rank": 3, "train.keep_replies_every": 1})
        status, said = train_stage.main(), capfd.readouterr()
        assert status == 0, said.out + said.err
        assert said.out.count("[train] started") == 1, "one rank speaks"
        assert "continuing" not in said.out
        out = here / "data" / "train"
        files = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
        written.append((files, (out / "replies.jsonl").read_text(), json.loads((out / "metrics.json").read_text())))
        out.rename(here / f"train{ranks}")
        (here / ".state").rename(here / f"state{ranks}")
    assert written[0] == written[1]
    assert "policy/adapter/adapter_model.safetensors" in written[0][0]


RANK = """
import os, sys, time
from tuneloop.training.launch import end_with_the_launcher, launch, launched

if not launched():
    sys.exit(launch("rank", 2))
end_with_the_launcher()
open("at-work-" + os.environ["RANK"], "w").close()
time.sleep(600)
"""
"""Starts itself as two ranks, as the stage does, without the seconds that its imports take."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_rank_goes_on_without_its_launcher(tmp_path: Path, environment: dict[str, str], number: int) -> None:
    (tmp_path / "rank.py").write_text(RANK, encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-m", "rank"], cwd=tmp_path, env=environment)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("at-work-*"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    children = psutil.Process(process.pid).children()
    process.send_signal(number)
    process.wait(timeout=30)
    assert len(children) == 2
    assert not psutil.wait_procs(children, timeout=10)[1]


def test_a_rank_that_dies_ends_the_run_in_words_and_another_number_of_ranks_goes_on(
    here: Path, write_params: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    run = {"train.steps": 40, "train.evaluate_every": 40, "train.keep_replies_every": 40}
    write_params(here, run | {"machine.ranks": 2})
    process = subprocess.Popen(
        [sys.executable, "-m", "stages.train"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 120
    while not newest_state(here):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.01)
    children = psutil.Process(process.pid).children()
    second = next(child for child in children if child.environ()["RANK"] == "1")
    os.kill(second.pid, signal.SIGKILL)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 1, said
    assert "rank 1 of 2 was killed (SIGKILL), so the run was stopped; run the same command again" in said
    assert "Traceback" not in said
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert not (here / "data" / "train").exists(), "nothing is written before the end"

    write_params(here, run | {"machine.ranks": 1})
    capfd.readouterr()
    assert train_stage.main() == 0
    assert re.search(r"continuing after step \d+ of 40", capfd.readouterr().out)


def test_a_mistake_in_the_parameters_is_said_once_whatever_the_number_of_ranks(
    here: Path, write_params: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    write_params(here, {"rollout.top_p": 0.9, "machine.ranks": 2})
    status, said = train_stage.main(), capfd.readouterr()
    assert status == 2, said.out + said.err
    assert said.err.count("rollout.top_p=0.9") == 1
    assert "Traceback" not in said.err
