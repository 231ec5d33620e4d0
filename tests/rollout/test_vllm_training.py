"""A small training run whose replies come from vLLM."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from rollout.vllm_policies import STARTED

from tuneloop import machine
from tuneloop.artifacts import read_jsonl, write_jsonl
from tuneloop.params import Params
from tuneloop.policies.policy import load_policy
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.engines import load_engine
from tuneloop.rollout.vllm_engine import VllmEngine
from tuneloop.tasks import load_task
from tuneloop.training.trainer import Trainer

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed"),
]

# One head of 32 numbers: the narrowest that vLLM's attention on the CPU takes.
WIDTHS = {"policy.nano.hidden_size": 32, "policy.nano.heads": 1, "policy.nano.kv_heads": 1}
VLLM = {"rollout.engine": "vllm", "rollout.vllm.memory_share": 0.01, "rollout.vllm.max_model_len": 512}
EXACT = {"rollout.vllm.dtype": "float32"}
COARSE = {
    "rollout.vllm.dtype": "bfloat16",
    "train.old_logprobs": "trainer",
    "train.engine_ratio_cap": 2.0,
    "train.engine_gap_limit": 0.1,
}


@pytest.fixture(scope="module")
def folder(make_policy: Callable[..., Path]) -> Path:
    return make_policy(WIDTHS)


def trained(params: Params, folder: Path, records: tuple[list, list]) -> Trainer:
    """The trainer after all its steps."""
    policy = load_policy(folder, machine.prepare(params.machine.threads))
    engine = load_engine(policy, params.rollout)
    STARTED.append(engine)
    asker = Asker(policy, engine, load_task("tictactoe"))
    trainer = Trainer(asker, engine, *records, params.train, params.rollout, params.seed)
    for _ in trainer.run():
        pass
    return trainer


def test_four_steps_in_float32_agree_with_the_trainer_at_every_step_and_repeat(
    tiny_params: Callable[..., Params], folder: Path, tiny_records: tuple[list, list]
) -> None:
    params = tiny_params(WIDTHS | VLLM | EXACT)
    one, other = (trained(params, folder, tiny_records) for _ in range(2))
    assert isinstance(one.engine, VllmEngine)
    history = one.tables.history
    assert [row["step"] for row in history] == [1, 2, 3, 4]
    assert all(row["weights_changed"] > 0.5 for row in history), "else the next step could not see old weights"
    # The trainer has moved by 1e-3 a weight and step; weights of the step before would be off by far more.
    assert all(row["engine_gap_mean"] < 1e-5 and row["engine_gap_max"] < 1e-4 for row in history)
    assert history == other.tables.history and one.tables.replies == other.tables.replies
    for a, b in zip(one.asker.policy.model.parameters(), other.asker.policy.model.parameters()):
        assert torch.equal(a, b)


def test_four_steps_with_a_bfloat16_engine_start_every_ratio_at_1(
    tiny_params: Callable[..., Params], folder: Path, tiny_records: tuple[list, list]
) -> None:
    params = tiny_params(WIDTHS | VLLM | COARSE | {"train.updates_per_step": 1})
    history = trained(params, folder, tiny_records).tables.history
    assert len(history) == 4
    for row in history:
        assert 1e-4 < row["engine_gap_mean"] < 0.1, "coarse, and not stale"
        assert row["ratio_min"] == pytest.approx(1, abs=1e-4) == row["ratio_max"], "πold is the trainer's"


@pytest.mark.slow
def test_the_stages_run_on_vllm_without_a_network(
    tmp_path: Path, folder: Path, tiny_records: tuple[list, list], write_params: Callable[..., None], cut_off: dict
) -> None:
    write_params(tmp_path, WIDTHS | VLLM | EXACT | {"train.steps": 2, "evaluate.games": 1, "evaluate.samples": 1})
    train, heldout = tiny_records
    for name, rows in (("boards", train + heldout), ("train", train), ("heldout", heldout)):
        write_jsonl(tmp_path / "data" / "boards" / f"{name}.jsonl", rows)
    shutil.copytree(folder, tmp_path / "data" / "policy" / "model")
    for stage in ("baseline", "train"):
        command = [sys.executable, "-m", f"stages.{stage}"]
        done = subprocess.run(command, cwd=tmp_path, env=cut_off, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        assert f"[{stage}] ended after" in done.stdout
    rows = read_jsonl(tmp_path / "data" / "baseline" / "replies.jsonl")
    assert {row["finish_reason"] for row in rows} <= {"stop", "length"} and len(rows) >= 2 * len(heldout)
    assert (tmp_path / "data" / "train" / "policy" / "model.safetensors").stat().st_size > 10_000
