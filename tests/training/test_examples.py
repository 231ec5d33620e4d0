"""Examples from a file: what is accepted, what is refused and how, and a training run on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from runs import TASK, assert_two_and_two_steps_equal_four

from stages import train as train_stage
from tuneloop import machine
from tuneloop.artifacts import compact_json
from tuneloop.errors import UserError
from tuneloop.params import Params
from tuneloop.policies.policy import load_policy
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.tasks.tictactoe.board import best_squares, free_squares
from tuneloop.tasks.tictactoe.generator import from_rows
from tuneloop.training.examples import Examples, load_examples
from tuneloop.training.trainer import Trainer

LIMIT = 40


def call(square: int) -> str:
    return f'<tool_call>\n{{"name":"choose_square","arguments":{{"square":{square}}}}}\n</tool_call>'


@pytest.fixture
def asker(tiny_policy: Path) -> Asker:
    policy = load_policy(tiny_policy, machine.prepare(1))
    return Asker(policy, TorchEngine(policy.model, policy.end_ids), TASK)


@pytest.fixture
def load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asker: Asker, tiny_records: tuple[list, list]
) -> Callable[..., Examples]:
    """`load("sft", row, row)`: what a file in examples/ with these rows (or lines) holds."""
    monkeypatch.chdir(tmp_path)

    def made(algorithm: str, *rows: Any) -> Examples:
        Path("examples").mkdir(exist_ok=True)
        lines = [row if isinstance(row, str) else compact_json(row) for row in rows]
        Path("examples/some.jsonl").write_text("\n".join(lines) + "\n")
        return load_examples("examples/some.jsonl", algorithm, asker, *tiny_records, LIMIT)

    return made


@pytest.fixture
def boards(tiny_records: tuple[list, list]) -> list[tuple[str, int, int]]:
    """Of the training records: id, a best square, an occupied one."""
    found = []
    for record in tiny_records[0]:
        board = from_rows(record["board"])
        taken = [s for s in range(1, 10) if s not in free_squares(board)]
        if taken:
            found.append((record["id"], best_squares(board)[0], taken[0]))
    return found


def test_a_demonstration_becomes_the_policys_reply_with_its_end_token(
    load: Callable, boards: list, asker: Asker, tiny_records: tuple
) -> None:
    key, best, _ = boards[0]
    found = load("sft", {"id": key, "reply": call(best)})
    (group,) = found.groups
    record = next(r for r in tiny_records[0] if r["id"] == key)
    assert group.prompt == asker.prompt(record, LIMIT)
    assert group.replies[0][-1] == asker.policy.end_ids[0] and asker.policy.decode(group.replies[0]) == call(best)
    assert group.advantages == [1.0]
    (note,) = found.notes
    assert note.startswith("examples/some.jsonl: 1 example on 1 prompt; mean reward +")


def test_a_pair_is_chosen_and_rejected_in_this_order(load: Callable, boards: list, asker: Asker) -> None:
    key, best, taken = boards[0]
    (group,) = load("dpo", {"id": key, "rejected": call(taken), "chosen": call(best)}).groups
    assert [asker.policy.decode(ids) for ids in group.replies] == [call(best), call(taken)]
    assert group.advantages == [1.0, -1.0]


def test_examples_that_the_tasks_own_reward_contradicts_are_counted_with_their_lines(
    load: Callable, boards: list
) -> None:
    (key, best, taken), (other, good, _) = boards[:2]
    notes = load("sft", {"id": other, "reply": call(good)}, {"id": key, "reply": call(taken)}).notes
    assert notes[1] == (
        "WARN examples/some.jsonl: 1 of 2 demonstrations earn no more than 0, the middle of the task's rewards (line 2)"
    )
    (_, warning) = load("dpo", {"id": key, "chosen": call(taken), "rejected": call(best)}).notes
    assert "1 of 1 pairs have a chosen reply that earns no more than the rejected one (line 1)" in warning


@pytest.mark.parametrize(
    ("algorithm", "row", "said"),
    [
        ("sft", {"id": "generated-99999", "reply": "x"}, "id generated-99999: there is no such training record"),
        ("sft", {"id": "HELDOUT", "reply": "x"}, "is a held-out record, which is never trained on"),
        ("sft", {"id": "KNOWN", "reply": " \n"}, r"id 'generated-\d+': reply is ' \\n', not a text"),
        ("sft", {"id": "KNOWN", "reply": 5}, "reply is 5, not a text"),
        (
            "sft",
            {"id": "KNOWN", "reply": "a b c d e f g " * 30},
            r"takes \d+ tokens, more than rollout.max_new_tokens=40",
        ),
        ("sft", {"id": "KNOWN", "reply": "END"}, "holds the token that ends a reply"),
        ("sft", {"id": "KNOWN", "chosen": "x", "rejected": "y"}, "algorithm sft wants id, reply"),
        ("sft", {"id": "KNOWN", "reply": "x", "why": "y"}, "has the fields id, reply, why; algorithm sft wants"),
        ("dpo", {"id": "KNOWN", "reply": "x"}, "algorithm dpo wants id, chosen, rejected"),
        ("dpo", {"id": "KNOWN", "chosen": "x", "rejected": "x"}, "chosen and rejected are the same reply"),
        ("sft", "not JSON", "is not a JSON object"),
    ],
)
def test_a_line_that_cannot_be_trained_on_is_refused_with_file_line_and_id(
    load: Callable, boards: list, tiny_records: tuple, asker: Asker, algorithm: str, row: Any, said: str
) -> None:
    words = {"KNOWN": boards[0][0], "HELDOUT": tiny_records[1][0]["id"]}
    words["END"] = "x" + asker.policy.tokenizer.convert_ids_to_tokens(asker.policy.end_ids[0])
    first = {"id": boards[1][0], "reply": call(1)} if algorithm == "sft" else None
    first = first or {"id": boards[1][0], "chosen": call(1), "rejected": call(2)}
    if isinstance(row, dict):
        row = {name: words.get(value, value) for name, value in row.items()}
    with pytest.raises(UserError, match=said) as error:
        load(algorithm, first, row)
    assert str(error.value).startswith("examples/some.jsonl, line 2")
    if isinstance(row, dict) and "wants" not in said:
        assert f"line 2, id {row['id']}" in str(error.value).replace("'", "")


@pytest.mark.parametrize(
    ("path", "said"),
    [("data/mine.jsonl", "is not in the folder examples/"), ("examples/none.jsonl", "there is no file examples/none")],
)
def test_a_file_elsewhere_or_nowhere_is_refused(load: Callable, asker: Asker, path: str, said: str) -> None:
    Path("data").mkdir()
    Path("data/mine.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=said):
        load_examples(path, "sft", asker, [], [], LIMIT)


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_training_on_examples_takes_them_in_passes_and_rolls_out_for_the_curve_alone(
    load: Callable, boards: list, algorithm: str, tiny_params: Callable[..., Params], tiny_policy: Path,
    tiny_records: tuple, tmp_path: Path, used: list,
) -> None:  # fmt: skip
    rows = [{"id": key, "reply": call(best)} for key, best, _ in boards[:6]]
    if algorithm == "dpo":
        rows = [{"id": key, "chosen": call(best), "rejected": call(taken)} for key, best, taken in boards[:6]]
    examples = load(algorithm, *rows).groups
    changes = {"train.algorithm": algorithm, "train.examples": "examples/some.jsonl", "train.boards_per_step": 3}
    params = tiny_params(changes)

    def start() -> Trainer:
        policy = load_policy(tiny_policy, machine.prepare(1))
        engine = TorchEngine(policy.model, policy.end_ids)
        made = Asker(policy, engine, TASK), engine
        return Trainer(*made, *tiny_records, params.train, params.rollout, params.seed, examples=examples)

    trainer = assert_two_and_two_steps_equal_four(start, tmp_path / "states")
    # Two steps of three are a pass over six.
    trained = [tuple(g.prompt) for update in used for g in update][:12]
    assert sorted(trained[:6]) == sorted(trained[6:]) == sorted(tuple(g.prompt) for g in examples)
    history = trainer.tables.history
    # keep_replies_every is 2: the first step and every second one.
    assert [row["reward_mean"] is not None for row in history] == [True, True, False, True]
    assert [row["length_all"] is None for row in history] == [False, False, True, False]
    assert all(row["engine_gap_mean"] is None and row["ratio_mean"] is None for row in history)
    assert history[-1]["loss"] < history[0]["loss"]
    assert {row["step"] for row in trainer.tables.replies} == {1, 2, 4}


def test_the_resume_state_is_another_once_the_file_changes(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, tiny_params: Callable[..., Params]
) -> None:
    monkeypatch.chdir(workspace)
    params = tiny_params({"train.algorithm": "sft", "train.examples": "examples/a.jsonl"})
    Path("examples").mkdir()
    keys = set()
    for text in ("one", "two"):
        Path("examples/a.jsonl").write_text(text)
        keys.add(train_stage.run_key(params))
    assert len(keys) == 2


def test_the_train_stage_depends_on_the_folder_of_examples(root: Path) -> None:
    pipeline = YAML(typ="safe").load((root / "dvc.yaml").read_text())
    assert "examples" in pipeline["stages"]["train"]["deps"] and (root / "examples/README.md").is_file()


def test_the_stage_says_what_the_file_holds_and_writes_its_tables(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, write_params: Callable[..., None], boards: list,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(workspace)
    write_params(workspace, {"train.algorithm": "sft", "train.examples": "examples/a.jsonl", "train.steps": 3})
    Path("examples").mkdir()
    rows = [compact_json({"id": key, "reply": call(best)}) for key, best, _ in boards[:4]]
    Path("examples/a.jsonl").write_text("\n".join(rows) + "\n")
    assert train_stage.main() == 0
    assert "[train] examples/a.jsonl: 4 examples on 4 prompts; mean reward +" in capsys.readouterr().out
    header, *lines = Path("data/train/history.csv").read_text().splitlines()
    assert header.endswith(",loss") and len(lines) == 3 and lines[2].startswith("3,,,,,")
