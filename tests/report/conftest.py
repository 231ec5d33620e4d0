"""A small finished experiment: real boards, real scores and the pipeline's real formats, with
players that know no language in the policy's place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tuneloop.artifacts import compact_json, write_csv, write_json, write_jsonl, write_text
from tuneloop.evaluation.comparison import Comparison, compare
from tuneloop.tasks import load_task
from tuneloop.tasks.tictactoe.board import best_squares, finishing_squares
from tuneloop.tasks.tictactoe.generator import from_rows
from tuneloop.tasks.tictactoe.reward import REWARDS, move_outcome

TASK = load_task("tictactoe")
RECORDS = TASK.generate(160, 1)
SAMPLES = 4
HOSTILE = "</pre><script>alert('x')</script><img src=x onerror=alert(1)> \ud800 \x00 \u202e & done"
"""Markup, a lone surrogate, a NUL and a right-to-left override, as a reply may hold them."""

PARAMS = "seed: 1\ntask:\n  name: tictactoe  # <b>not bold</b>\n"

Choose = Callable[[str, Random], int | None]


def any_square(board: str, random: Random) -> int | None:
    """Any square of the nine; one reply in ten holds no call (None)."""
    return random.randint(1, 9) if random.random() < 0.9 else None


def mostly_best(board: str, random: Random) -> int | None:
    if random.random() < 0.15:
        return any_square(board, random)
    return random.choice(finishing_squares(board, "X") or best_squares(board))


PLAYERS: dict[str, Choose] = {"random": any_square, "good": mostly_best}


def reply(record: dict[str, Any], square: int | None) -> dict[str, Any]:
    """The columns of a reply that depend on what was chosen."""
    arguments = {"square": square}
    call = None if square is None else compact_json({"name": "choose_square", "arguments": arguments})
    outcome = move_outcome(from_rows(record["board"]), square) if square else None
    return {
        "text": f"I would rather not say.\n{HOSTILE}" if call is None else f"<tool_call>\n{call}\n</tool_call>",
        "call": call,
        "outcome": outcome.name if outcome else "no_call",
        "reward": outcome.reward if outcome else REWARDS["no_call"],
        "length": 64 if call is None else 20 + square % 4,
        "finish_reason": "length" if call is None else "stop",
    }


def replies(choose: Choose, seed: int, greedy: bool = True) -> list[dict[str, Any]]:
    random = Random(seed)
    return [
        {
            "id": record["id"],
            "board": TASK.show(record),
            "stratum": TASK.stratum(record),
            "cluster": TASK.split_key(record),
            "decoding": decoding,
            "sample": sample,
            "prompt_hash": f"{int(record['id'][-5:]):016x}",
            **reply(record, choose(from_rows(record["board"]), random)),
        }
        for record in RECORDS
        for decoding, sample in [("greedy", 0)] * greedy + [("sampled", i) for i in range(SAMPLES)]
    ]


def games(choose: Choose, seed: int) -> list[dict[str, Any]]:
    rules, random, rows = TASK.games, Random(seed), []
    for side in rules.sides:
        for opponent, move_of_opponent in rules.opponents.items():
            for game in range(12):
                position, moves, fault = rules.start(), [], None
                while rules.winner(position) is None and fault is None:
                    if rules.to_move(position) == side:
                        square = choose(from_rows(rules.record_of(position)["board"]), random)
                        if square is None or not rules.is_legal(position, square):
                            fault = "no_call" if square is None else "occupied"
                            break
                    else:
                        square = move_of_opponent(position, random)
                    moves.append(str(square))
                    position = rules.apply(position, square)
                end = rules.winner(position)
                result = "forfeit" if fault else "drawn" if end == "draw" else "won" if end == side else "lost"
                played = {"side": side, "opponent": opponent, "game": game, "result": result}
                rows.append(played | {"plies": len(moves), "moves": " ".join(moves), "fault": fault})
    return rows


def history(steps: int) -> list[dict[str, Any]]:
    """A run that learns legality fast and optimal play slowly."""
    random, rows = Random(9), []
    for step in range(steps):
        far = 1 - math.exp(-4 * step / max(1, steps - 1))
        weights = dict(zip(TASK.outcomes, (0.3, 0.01, 0.02, 0.05, 0.3, 0.15, 0.12, 0.05)))
        end = dict(zip(TASK.outcomes, (0.001, 0.0, 0.0, 0.002, 0.02, 0.11, 0.55, 0.31)))
        mixed = {n: max(0.0, (1 - far) * weights[n] + far * end[n] + random.gauss(0, 0.012)) for n in TASK.outcomes}
        shares = {n: value / sum(mixed.values()) for n, value in mixed.items()}
        spread = 0.02 + 0.01 * random.random()
        rows.append(
            {
                "step": step + 1,
                "reward_mean": sum(shares[n] * REWARDS[n] for n in shares),
                "reward_std": 0.5,
                "reward_min": -1.0,
                "reward_max": 1.0,
                **{f"share_{n}": share for n, share in shares.items()},
                "length_all": 24 - 3 * far + random.random(),
                "length_finished": 22 - far + random.random(),
                "length_truncated": 64.0 if random.random() > far else "",
                "ratio_mean": 1 + random.gauss(0, 0.002),
                "ratio_std": spread,
                "ratio_min": 1 - 3 * spread,
                "ratio_max": 1 + 4 * spread,
                "clip_low": 0.04 * random.random(),
                "clip_high": 0.08 * random.random(),
                "zero_variance_groups": float(round(10 * far + random.random())),
                "entropy": 0.25 * (1 - 0.8 * far) + 0.01 * random.random(),
                "grad_norm": 1.0,
                "lr": 3e-4,
                "engine_gap_mean": 1e-6,
                "engine_gap_max": 1e-5,
                "weights_changed": 1.0,
            }
        )
    return rows


def check(success: bool) -> dict[str, Any]:
    row = {"table": "boards", "name": "X is to move", "column": "board", "success": success}
    failing = [] if success else ["generated-00003"]
    return {
        "success": success,
        "rows": {"boards": len(RECORDS)},
        "expectations": [row | {"unexpected_count": len(failing), "ids": failing, "detail": ""}],
    }


def write_experiment(data: Path, before: str = "random", after: str = "good", steps: int = 120) -> Path:
    """Everything that `compare` reads, under `data`, for two of `PLAYERS`; the folder itself."""
    write_jsonl(data / "boards/heldout.jsonl", RECORDS)
    for stage, choose, seed in (("baseline", PLAYERS[before], 1), ("retest", PLAYERS[after], 2)):
        rows = replies(choose, seed)
        # Lone surrogates survive in JSON only as escapes, which is how a decoder would have to write them.
        write_text(data / stage / "replies.jsonl", "".join(_escaped(row) for row in rows))
        write_jsonl(data / stage / "games.jsonl", games(choose, seed))
        write_json(data / stage / "timings.json", {"seconds": 61.5})
    write_text(
        data / "baseline/rerun.jsonl", "".join(_escaped(row) for row in replies(PLAYERS[before], 3, greedy=False))
    )
    write_csv(data / "train/history.csv", history(steps))
    rewards = [{"step": s, "reward": 0.8 - 1.1 * math.exp(-4 * s / steps)} for s in range(0, steps + 1, 20)]
    write_csv(
        data / "train/evaluations.csv",
        [row | {"legal": 0.9, "optimal": 0.8, "length": 21.5} for row in rewards],
    )
    speeds = {"rollout_seconds": 1.5, "train_seconds": 2.25, "replies_per_second": 340.0, "tokens_per_second": 7480.0}
    write_csv(data / "train/timings.csv", [{"step": 1} | speeds])
    write_json(data / "train/timings.json", {"seconds": 4321.0})
    write_json(data / "checks/boards.json", check(True))
    write_json(data / "checks/rewards.json", check(True))
    return data


def _escaped(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


@pytest.fixture(scope="session")
def make_experiment() -> Callable[..., Path]:
    return write_experiment


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `data` folder of an experiment whose policy learned. Read only."""
    return write_experiment(tmp_path_factory.mktemp("experiment") / "data")


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same experiment with `data/compare` written. Read only."""
    data = write_experiment(tmp_path_factory.mktemp("compared") / "data")
    run_compare(data)
    return data


@pytest.fixture(scope="session")
def compare_in() -> Callable[..., Comparison]:
    return run_compare


def run_compare(data: Path, policy: str = "nano") -> Comparison:
    from stages.compare import compare_files

    return compare_files(data, "tictactoe", policy, PARAMS, resamples=500, confidence=0.95, seed=1)


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    before, after = PLAYERS["random"], PLAYERS["good"]
    return compare(
        replies(before, 1),
        replies(after, 2),
        replies(before, 3, greedy=False),
        outcomes=TASK.outcomes,
        measures=TASK.measures,
        reference=TASK.reference_players(RECORDS),
        resamples=500,
        confidence=0.95,
        seed=1,
        games={"before": games(before, 1), "after": games(after, 2)},
    )
