"""Whole games judged once more, from their rows alone."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest
from valid_tables import failures

from tuneloop.checks import load_checks
from tuneloop.checks.episodes import episode_tables
from tuneloop.checks.replies import Setting
from tuneloop.tasks import load_episodes, load_task
from tuneloop.tasks.tictactoe.oracle import episode_oracle
from tuneloop.toolcalls import calls_as_json, load_dialect, read_reply
from tuneloop.toolcalls.contract import Reasoning, ToolCall

TASK = load_task("tictactoe")
REASONING = Reasoning("<think>", "</think>")
HERMES = load_dialect("hermes")


def played(record: dict[str, Any], sample: int, reward_at: str) -> dict[str, Any]:
    """The row of a game in which X takes squares at random, now and then one that is not free, or says nothing."""
    random = Random(f"{record['id']} {sample}")
    episode = load_episodes(TASK, "game", "mixed", reward_at).start(record, sample)
    turns = []
    while episode.outcome is None:
        text = HERMES.render(ToolCall("choose_square", {"square": random.randint(1, 9)}))
        text = text if random.random() < 0.9 else "<think>nothing"
        reading = read_reply(text, HERMES, TASK.tools, REASONING)
        result = episode.take(reading)
        reward = episode.rewards[-1] if episode.rewards else None
        turns.append({"text": text, "call": calls_as_json(reading), "result": result, "reward": reward, "length": 9})
    return {
        "step": 1,
        "id": record["id"],
        "board": TASK.show(record),
        "stratum": TASK.stratum(record),
        "cluster": TASK.split_key(record),
        "sample": sample,
        "prompt_hash": "0" * 16,
        "text": turns[-1]["text"],
        "call": turns[-1]["call"],
        "outcome": episode.outcome.name,
        "reward": episode.outcome.reward,
        "length": 9 * len(turns),
        "finish_reason": "stop",
        "turns": turns,
    }


RECORDS = TASK.generate(300, 3)
GROUP = 4


def rows(reward_at: str) -> list[dict[str, Any]]:
    return [played(record, sample, reward_at) for record in RECORDS for sample in range(GROUP)]


def judged(row: dict[str, Any], reward_at: str = "end") -> tuple[str, float | None]:
    return episode_oracle(row["board"], row["turns"], REASONING, "hermes", reward_at)


@pytest.mark.parametrize("reward_at", ["end", "turn"])
def test_oracle_and_task_agree_on_1200_games_that_end_in_every_way(reward_at):
    games = rows(reward_at)
    assert [judged(row, reward_at) for row in games] == [(row["outcome"], row["reward"]) for row in games]
    assert {row["outcome"] for row in games} == {"won", "drawn", "lost", "occupied", "no_call"}


def test_a_record_that_is_no_whole_game_is_not_judged():
    longest = max(rows("end"), key=lambda row: len(row["turns"]))
    cut, late, silent, moved = (copy.deepcopy(longest) for _ in range(4))
    cut["turns"].pop()
    late["turns"].append(late["turns"][-1])
    silent["turns"][0]["result"] = "Go on."
    moved["turns"][1]["result"] = moved["turns"][0]["result"]
    assert judged(cut) == ("not played to its end", None)
    assert judged(late) == ("goes on after its end", None)
    assert judged(silent) == ("O makes no move", None)
    assert judged(moved) == ("O makes no move", None)


def test_the_table_of_a_training_on_games_passes_and_a_spoiled_reward_or_turn_is_named():
    setting = Setting(TASK, load_checks("tictactoe"), RECORDS[:20], [], 40, "hermes", REASONING)
    episodes = load_episodes(TASK, "game", "mixed", "end")

    def failed(table: list[dict[str, Any]]) -> dict[str, list[str]]:
        return failures(episode_tables("train", table, setting, GROUP, 3, episodes, "end"))

    table = rows("end")[: 20 * GROUP]
    assert failed(table) == {}
    table[5] = table[5] | {"reward": 0.25}
    table[9] = table[9] | {"turns": table[9]["turns"] + table[9]["turns"][-1:]}
    found = failed(table)
    assert found["train: outcome_as_oracle"] == [RECORDS[9 // GROUP]["id"]]
    assert found["train: reward_as_oracle"] == [RECORDS[5 // GROUP]["id"]]
