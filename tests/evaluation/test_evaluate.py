"""The evaluation: the same policy gives the same table, and every part of the loop asks the same question."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuneloop import machine
from tuneloop.artifacts import read_json, read_jsonl
from tuneloop.evaluation.evaluate import greedy_rows, sampled_rows, summarise
from tuneloop.evaluation.games import play_games
from tuneloop.evaluation.measure import measure
from tuneloop.params import Params
from tuneloop.policies.policy import Policy, load_policy
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.tasks import load_task
from tuneloop.training.trainer import Trainer

TASK = load_task("tictactoe")
COLUMNS = "id,board,stratum,cluster,decoding,sample,prompt_hash,text,call,outcome,reward,length,finish_reason"
"""The documented columns of a reply table, in order."""


class Recorder:
    """A torch engine that remembers the prompts it was given."""

    def __init__(self, policy: Policy):
        self.inner = TorchEngine(policy.model, policy.end_ids)
        self.prompts: list[list[int]] = []

    def generate(self, prompts: Any, seeds: Any, sampling: Sampling) -> list[list[Reply]]:
        self.prompts += map(list, prompts)
        return self.inner.generate(prompts, seeds, sampling)

    def weights_changed(self) -> None:
        self.inner.weights_changed()


@pytest.fixture
def policy(tiny_policy: Path, tiny_params: Callable[..., Params]) -> Policy:
    return load_policy(tiny_policy, machine.prepare(tiny_params().machine.threads))


@pytest.fixture
def asker(policy: Policy) -> Asker:
    return Asker(policy, Recorder(policy), TASK)


@pytest.fixture
def limit(tiny_params: Callable[..., Params]) -> int:
    return tiny_params().rollout.max_new_tokens


def test_baseline_and_retest_of_one_policy_are_the_same_bytes(
    workspace: Path, tiny_params: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    params = tiny_params()
    measure(params, Path("data/policy/model"), Path("data/baseline"), rerun=True)
    measure(params, Path("data/policy/model"), Path("data/retest"), rerun=False)
    for name in ("replies.jsonl", "games.jsonl", "metrics.json"):
        assert Path(f"data/baseline/{name}").read_bytes() == Path(f"data/retest/{name}").read_bytes(), name
    assert not Path("data/retest/rerun.jsonl").exists()

    rows, rerun = read_jsonl("data/baseline/replies.jsonl"), read_jsonl("data/baseline/rerun.jsonl")
    heldout = [record["id"] for record in read_jsonl("data/boards/heldout.jsonl")]
    assert all(",".join(row) == COLUMNS for row in rows + rerun)
    greedy, sampled = ([row for row in rows if row["decoding"] == d] for d in ("greedy", "sampled"))
    assert [(row["id"], row["sample"]) for row in greedy] == [(i, 0) for i in heldout]
    for table in (sampled, rerun):
        assert [(row["id"], row["sample"]) for row in table] == [(i, n) for i in heldout for n in (0, 1)]
    assert {row["decoding"] for row in rerun} == {"sampled"}
    assert [row["text"] for row in rerun] != [row["text"] for row in sampled], "another seed, other replies"

    metrics = read_json("data/baseline/metrics.json")
    assert metrics["sampled"] == summarise(sampled, TASK)
    assert metrics["greedy"] == summarise(greedy, TASK)
    games = Counter((row["side"], row["opponent"]) for row in read_jsonl("data/baseline/games.jsonl"))
    assert games == {(side, foe): 2 for side in "XO" for foe in ("random", "win/block", "minimax")}
    assert metrics["games"].keys() == {"X", "O"}


def test_without_games_the_table_is_there_and_empty(
    workspace: Path, tiny_params: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    measure(tiny_params({"evaluate.games": 0}), Path("data/policy/model"), Path("data/retest"), rerun=False)
    assert Path("data/retest/games.jsonl").read_bytes() == b""
    assert read_json("data/retest/metrics.json")["games"] == {}


def test_a_record_is_asked_with_the_same_prompt_in_training_evaluation_and_games(
    policy: Policy, tiny_params: Callable[..., Params], limit: int
) -> None:
    params = tiny_params({"train.steps": 1, "train.boards_per_step": 2, "train.lr": 0.0})
    empty = {"id": "empty", "board": [list("...")] * 3}
    records = [empty, {"id": "other", "board": [list("X.."), list(".O."), list("...")]}]
    asked: dict[str, list[list[int]]] = {}
    hashes: dict[str, set[str]] = {}
    for part in ("training", "evaluation", "games"):
        engine = Recorder(policy)
        asker = Asker(policy, engine, TASK)
        if part == "training":
            trainer = Trainer(asker, engine, records, records, params.train, params.rollout, seed=1)
            list(trainer.run())
            hashes[part] = {row["prompt_hash"] for row in trainer.tables.replies}
        elif part == "evaluation":
            hashes[part] = {row["prompt_hash"] for row in sampled_rows(asker, records, 2, 1, Sampling(limit))}
        else:
            play_games(asker, TASK.games, 1, 1, limit)
        asked[part] = engine.prompts
    expected = [policy.prompt_ids(TASK.messages(record), TASK.tools) for record in records]
    assert sorted(set(map(tuple, asked["training"]))) == sorted(map(tuple, expected))
    assert asked["evaluation"] == expected
    assert asked["games"][0] == expected[0], "the policy's first move as X is on the empty board"
    hash_of = {hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16] for ids in expected}
    assert hashes["training"] == hashes["evaluation"] == hash_of


def test_a_prompt_shows_the_tools_the_board_and_where_the_reply_starts(asker: Asker, limit: int) -> None:
    record = {"id": "a", "board": [list("X.O"), list("..."), list("XO.")]}
    text = asker.policy.tokenizer.decode(asker.prompt(record, limit))
    assert '"choose_square"' in text
    assert all(message["content"] in text for message in TASK.messages(record))
    assert text.endswith("<|im_start|>assistant\n")


def test_a_record_gets_the_same_replies_whatever_else_is_evaluated(
    asker: Asker, tiny_records: tuple[list, list], limit: int
) -> None:
    heldout = tiny_records[1]
    together = sampled_rows(asker, heldout, 3, 1, Sampling(limit))
    alone = [row for record in reversed(heldout) for row in sampled_rows(asker, [record], 3, 1, Sampling(limit))]
    assert sorted(map(json.dumps, alone)) == sorted(map(json.dumps, together))
    fewer = sampled_rows(asker, heldout, 2, 1, Sampling(limit))
    assert fewer == [row for row in together if row["sample"] < 2]


def test_two_records_draw_noise_of_their_own_even_on_one_board(
    asker: Asker, tiny_records: tuple[list, list], limit: int
) -> None:
    records = [{**tiny_records[1][0], "id": name} for name in "abcdef"]
    rows = sampled_rows(asker, records, 2, 1, Sampling(limit))
    assert len({row["prompt_hash"] for row in rows}) == 1
    assert len({row["text"] for row in rows if row["sample"] == 0}) > 1
    assert any(one["text"] != other["text"] for one, other in zip(rows[::2], rows[1::2]))


def test_more_records_than_fit_into_one_batch_are_all_asked_and_reported(
    asker: Asker, tiny_records: tuple[list, list], limit: int
) -> None:
    records = [{**record, "id": f"{record['id']}-{i}"} for i in range(12) for record in tiny_records[1]]
    done: list[int] = []
    rows = greedy_rows(asker, records, limit, done.append)
    assert [row["id"] for row in rows] == [record["id"] for record in records]
    assert sum(done) == len(records) > max(done), "in several parts"
    texts = [row["text"] for row in rows]
    assert texts == texts[: len(tiny_records[1])] * 12


def test_greedy_replies_know_no_seed_and_no_temperature(
    asker: Asker, tiny_records: tuple[list, list], limit: int
) -> None:
    rows = greedy_rows(asker, tiny_records[1], limit)
    assert rows == greedy_rows(asker, tiny_records[1], limit)
    assert all(row["sample"] == 0 and row["decoding"] == "greedy" for row in rows)


def test_a_row_says_what_was_read_from_its_text(asker: Asker, tiny_records: tuple[list, list], limit: int) -> None:
    rows = sampled_rows(asker, tiny_records[0], 2, 3, Sampling(limit))
    found = Counter(row["outcome"] for row in rows)
    assert len(found) >= 4, "the tiny policy is made to write every kind of reply"
    for row in rows:
        faulty = row["outcome"] in ("no_call", "several_calls", "wrong_tool", "bad_arguments")
        assert (row["call"] is None) == faulty
        if not faulty:
            call = json.loads(row["call"])
            cell = row["board"].replace("/", "")[call["arguments"]["square"] - 1]
            assert (cell != ".") == (row["outcome"] == "occupied")
        assert 1 <= row["length"] <= limit
        assert row["finish_reason"] == "stop" or row["length"] == limit
        assert not row["text"].endswith("<|im_end|>")


def test_the_summary_of_a_table_written_by_hand() -> None:
    rows = [
        {"outcome": "win", "reward": 1.0, "length": 10, "finish_reason": "stop"},
        {"outcome": "optimal", "reward": 0.8, "length": 20, "finish_reason": "stop"},
        {"outcome": "legal", "reward": 0.0, "length": 30, "finish_reason": "stop"},
        {"outcome": "no_call", "reward": -1.0, "length": 40, "finish_reason": "length"},
        {"outcome": "no_call", "reward": -1.0, "length": 6, "finish_reason": "stop"},
    ]
    # By hand: (1 + 0.8 + 0 − 1 − 1) / 5; 3 of 5 legal, 2 of 5 optimal; lengths 106 / 5, 66 / 4, 40 / 1.
    summary = summarise(rows, TASK)
    assert summary.pop("reward") == pytest.approx(-0.04)
    assert summary == {
        "legal": 0.6,
        "optimal": 0.4,
        "shares": {
            "no_call": 0.4,
            "several_calls": 0.0,
            "wrong_tool": 0.0,
            "bad_arguments": 0.0,
            "occupied": 0.0,
            "legal": 0.2,
            "optimal": 0.2,
            "win": 0.2,
        },
        "length": {"all": 21.2, "finished": 16.5, "truncated": 40.0},
        "replies": 5,
    }


def test_the_mean_length_of_replies_that_do_not_exist_is_empty() -> None:
    row = {"outcome": "win", "reward": 1.0, "length": 10, "finish_reason": "stop"}
    assert summarise([row], TASK)["length"] == {"all": 10.0, "finished": 10.0, "truncated": None}
    assert summarise([row | {"finish_reason": "length"}], TASK)["length"]["finished"] is None
