"""Resume states: what is picked up, what is kept, and what a failed or killed write leaves behind."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tuneloop.errors import UserError
from tuneloop.training.state import StateFolder, state_key


def state(step: int, size: int = 1000) -> dict:
    return {"step": step, "model": {"w": torch.full((size,), float(step))}, "tables": {"history": [{"step": step}]}}


def files(folder: StateFolder) -> list[str]:
    return sorted(path.name for path in folder.folder.iterdir())


def step_of(folder: StateFolder) -> int | None:
    """The step of the state that is loaded, whose parts must belong together."""
    found = folder.load()
    if found is None:
        return None
    assert torch.equal(found["model"]["w"], torch.full_like(found["model"]["w"], float(found["step"])))
    return found["step"]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = pytest.mark.parametrize("damage", [cut_short, flip_a_bit, empty])


def test_the_newest_state_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    states = StateFolder(tmp_path / "train", "key")
    assert states.load() is None
    for step in (2, 4, 10):
        states.save(step, state(step))
    assert step_of(states) == 10
    assert step_of(StateFolder(tmp_path / "train", "key")) == 10


def test_the_last_two_states_are_kept(tmp_path: Path) -> None:
    states = StateFolder(tmp_path, "key")
    for step in (1, 2, 9, 10, 11, 100, 99_999, 100_000):
        states.save(step, state(step))
        assert len(files(states)) == min(2, 1 + (step > 1))
        assert step_of(states) == step
    assert [name[:11] for name in files(states)] == ["step-099999", "step-100000"]


@DAMAGES
def test_a_damaged_state_is_named_and_the_one_before_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    states = StateFolder(tmp_path, "key")
    states.save(2, state(2))
    states.save(4, state(4))
    newest = states.folder / files(states)[-1]
    damage(newest)
    assert step_of(states) == 2
    assert capsys.readouterr().err == f"{newest}: is damaged and passed over\n"


def test_a_run_starts_anew_where_both_states_are_damaged_and_keeps_its_own_states(tmp_path: Path) -> None:
    states = StateFolder(tmp_path, "key")
    states.save(20, state(20))
    states.save(40, state(40))
    for name in files(states):
        flip_a_bit(states.folder / name)
    assert step_of(states) is None
    for step in (10, 20, 30):
        states.save(step, state(step))
        assert step_of(states) == step


def test_a_state_of_another_key_is_never_loaded(tmp_path: Path) -> None:
    StateFolder(tmp_path, "old").save(4, state(4))
    assert StateFolder(tmp_path, "new").load() is None


def test_states_of_other_keys_are_removed_when_the_first_is_saved_and_not_before(tmp_path: Path) -> None:
    old, new = StateFolder(tmp_path, "old"), StateFolder(tmp_path, "new")
    old.save(4, state(4))
    assert new.load() is None
    assert step_of(old) == 4
    new.save(1, state(1))
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


# The key


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    (tmp_path / "code" / "part").mkdir(parents=True)
    (tmp_path / "code" / "a.py").write_text("a = 1\n")
    (tmp_path / "code" / "part" / "b.py").write_text("b = 1\n")
    (tmp_path / "train.jsonl").write_text("{}\n")
    return tmp_path


def key(inputs: Path, **values: object) -> str:
    return state_key({"seed": 1} | values, [inputs / "train.jsonl", inputs / "code"])


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs: (inputs / "train.jsonl").write_text("{} \n"),
        lambda inputs: (inputs / "code" / "part" / "b.py").write_text("b = 2\n"),
        lambda inputs: (inputs / "code" / "part" / "b.py").rename(inputs / "code" / "part" / "c.py"),
        lambda inputs: (inputs / "code" / "part" / "b.py").rename(inputs / "code" / "b.py"),
        lambda inputs: (inputs / "code" / "new.py").write_text(""),
        lambda inputs: (inputs / "code" / "a.py").unlink(),
    ],
    ids=["data", "code", "a file's name", "a file's folder", "a new file", "a file less"],
)
def test_the_key_changes_with_every_file(inputs: Path, change: Callable[[Path], object]) -> None:
    before = key(inputs)
    change(inputs)
    assert key(inputs) != before


def test_the_key_changes_with_every_value(inputs: Path) -> None:
    assert len({key(inputs), key(inputs, seed=2), key(inputs, seed="1"), key(inputs, lr=0.1)}) == 4


def test_the_key_knows_neither_bytecode_nor_the_order_of_values_nor_where_the_project_lies(
    inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = state_key({"a": 1, "b": 2}, [inputs / "code"])
    (inputs / "code" / "__pycache__").mkdir()
    (inputs / "code" / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert state_key({"b": 2, "a": 1}, [inputs / "code"]) == before
    moved = tmp_path_factory.mktemp("elsewhere") / "project"
    inputs.rename(moved)
    assert state_key({"a": 1, "b": 2}, [moved / "code"]) == before


def test_the_training_key_holds_all_that_weights_depend_on_and_not_how_often_a_state_is_saved(
    workspace: Path, tiny_params: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.train import run_key

    monkeypatch.chdir(workspace)
    before = run_key(tiny_params())
    for same in ({"train.save_every": 7}, {"compare.bootstrap": 99}, {"evaluate.games": 9}):
        assert run_key(tiny_params(same)) == before
    others = (
        {"seed": 6},
        {"train.lr": 0.1},
        {"train.steps": 5},
        {"rollout.max_new_tokens": 41},
        {"machine.threads": 2},
    )
    keys = [run_key(tiny_params(other)) for other in others]
    for path in ("data/boards/train.jsonl", "data/boards/heldout.jsonl", "data/policy/model/tuneloop.json"):
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n")
        keys.append(run_key(tiny_params()))
    assert len({before, *keys}) == 1 + len(keys)


# Writes that fail


def test_a_root_that_is_no_folder_is_an_error_that_names_the_state_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("in the way")
    with pytest.raises(UserError) as error:
        StateFolder(tmp_path / "train", "key").save(3, state(3))
    assert str(error.value).startswith(f"{tmp_path}/train/key/step-000003-")
    assert ".pt: the training state of step 3 could not be saved (" in str(error.value)
    assert "run the same command again: it continues from the last state that was saved" in str(error.value)


def test_a_disk_that_is_full_leaves_the_older_state_whole_and_no_temporary_file(tmp_path: Path) -> None:
    states = StateFolder(tmp_path, "key")
    states.save(2, state(2))
    before = files(states)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A write past this many bytes of a file fails, like one on a disk without room.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match=r"the training state of step 4 could not be saved \(File too large\)"):
            states.save(4, state(4, size=1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(states) == before
    assert step_of(states) == 2
    states.save(4, state(4, size=1_000_000))
    assert step_of(states) == 4


def _save_for_ever(folder: Path) -> None:
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    states = StateFolder(folder, "key")
    step = step_of(states) or 0
    while True:
        step += 1
        states.save(step, state(step, size=500_000))


def test_a_process_killed_in_the_middle_of_a_save_leaves_a_state_that_loads(tmp_path: Path) -> None:
    states, chance = StateFolder(tmp_path, "key"), random.Random(3)
    reached, halves = [0], 0
    for _ in range(15):
        writer = multiprocessing.get_context("fork").Process(target=_save_for_ever, args=(tmp_path,))
        writer.start()
        time.sleep(chance.uniform(0.03, 0.12))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        halves += any(name.endswith(".tmp") for name in files(states)) if states.folder.exists() else 0
        step = step_of(states) or 0
        assert step >= reached[-1], "a state that was once there is never lost"
        reached.append(step)
    assert reached[-1] > 5
    assert halves, "else no save was cut in the middle"
    states.save(reached[-1] + 1, state(reached[-1] + 1))
    assert len(files(states)) == 2, "what the killed processes left is cleared away"
