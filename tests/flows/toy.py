"""A pipeline of two stages that takes a second: the same files, keys and params as the real one.

    python toy.py train | compare

The reward of a reply depends on board, learning rate and seed alone, so that tests can work it out. The
member that the file named by TOY_BROKEN holds ("LR SEED") fails.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tuneloop.params import load_params

BOARDS = 12
REPLIES = Path("data/retest/replies.jsonl")


def reward(board: int, lr: float, seed: int) -> float:
    """0 or 1: boards below a bar are won, and the bar rises with the learning rate, a little with the seed."""
    return float(board < 3 + round(lr * 1000) + seed % 2)


def train(lr: float, seed: int) -> None:
    broken = Path(os.environ["TOY_BROKEN"])
    if broken.exists() and broken.read_text() == f"{lr} {seed}":
        sys.exit("[train] error: this one is broken")
    total = 3
    for step in range(1, total + 1):
        print(f"[train] {step}/{total} reward={step / total:.3f} left={total - step}s", flush=True)
    rows = [
        {
            "id": f"board-{board:02}",
            "board": f"board {board}",
            "stratum": "all",
            "cluster": f"class {board // 2}",
            "decoding": decoding,
            "prompt_hash": "same",
            "outcome": "win" if reward(board, lr, seed) else "legal",
            "reward": reward(board, lr, seed),
            "length": 3,
            "finish_reason": "stop",
        }
        for board in range(BOARDS)
        for decoding in ("sampled", "sampled", "greedy")
    ]
    REPLIES.parent.mkdir(parents=True, exist_ok=True)
    REPLIES.write_text("".join(json.dumps(row) + "\n" for row in rows))


def compare() -> None:
    rows = [json.loads(line) for line in REPLIES.read_text().splitlines()]
    after = sum(row["reward"] for row in rows) / len(rows)

    def change(before: float, after: float) -> dict:
        ends = {"before": before, "after": after, "difference": after - before}
        return {name: {"value": x, "low": x - 0.1, "high": x + 0.1} for name, x in ends.items()}

    measures = {"reward": change(0.0, after), "legal": change(1.0, 1.0), "optimal": change(0.0, after)}
    metrics = {"sampled": measures, "greedy": measures, "verdict": {"kind": "improved", "sentence": "Improved: toy."}}
    Path("data/compare").mkdir(parents=True, exist_ok=True)
    Path("data/compare/metrics.json").write_text(json.dumps(metrics, indent=1))


PIPELINE = f"""
stages:
  train:
    cmd: {sys.executable} toy.py train
    params: [seed, train.lr]
    outs: [{REPLIES}]
  compare:
    cmd: {sys.executable} toy.py compare
    deps: [{REPLIES}]
    metrics:
      - data/compare/metrics.json: {{cache: false}}
"""

if __name__ == "__main__":
    params = load_params()
    compare() if sys.argv[1] == "compare" else train(params.train.lr, params.seed)
