"""What a benchmark runs, and how: sizes, the processes it starts, the environment they start in.

Nothing here imports torch. On Linux a process begins with the peak memory of the one that started it,
so the parent of a measured process must stay small.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuneloop.errors import UserError

ROOT = Path(__file__).parents[1]
SHAPES = ("nano", "smollm2-135m")


@dataclass(frozen=True)
class Workload:
    """One training step, `steps` times: `boards` × `replies` replies of exactly `new_tokens` tokens,
    split evenly into `updates` optimizer steps. `warm_up` "full": one whole step that is not counted;
    "small": one of 2 boards × 2 replies × 4 tokens. `device`: "cpu", computing in float32, or "cuda", computing in
    bfloat16 over float32 weights."""

    shape: str
    boards: int
    replies: int
    new_tokens: int
    updates: int
    steps: int
    warm_up: str
    threads: int
    seed: int
    device: str = "cpu"

    def require_sense(self) -> None:
        """Raises UserError for sizes that no step can have."""
        if self.replies < 2:
            raise UserError(
                f"--replies {self.replies}: a group needs at least 2 replies, else no advantage differs from 0"
            )
        if self.boards % self.updates:
            raise UserError(
                f"--boards {self.boards}: must be a multiple of {self.updates}, the optimizer steps of a rollout batch"
            )


def make_policy(workload: Workload, folder: Path) -> dict[str, Any]:
    """Write the workload, the policy and the boards into `folder`; returns what bench.step_policy says of
    them. Raises UserError where prompt and reply together are longer than the model's positions."""
    (folder / "workload.json").write_text(json.dumps(asdict(workload)), encoding="utf-8")
    policy = run_child("bench.step_policy", [folder], workload.threads, workload.device)
    longest, limit = max(policy["prompt_tokens"]), policy["positions"]
    if longest + workload.new_tokens > limit:
        raise UserError(
            f"--new-tokens {workload.new_tokens}: with a prompt of {longest} tokens that exceeds the {limit} "
            f"positions of {workload.shape}"
        )
    return policy


def load_workload(folder: Path) -> Workload:
    return Workload(**json.loads((folder / "workload.json").read_text(encoding="utf-8")))


def run_child(module: str, arguments: Sequence[str | Path | int], threads: int, device: str = "cpu") -> dict[str, Any]:
    """Run `python -m module arguments… RESULT` and return the JSON object it writes to the file RESULT.
    Raises UserError with the end of its output where it fails."""
    result = Path(arguments[0]) / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", module, *map(str, arguments), str(result)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(threads, device), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode or not result.exists():
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise UserError(f"{module} failed (exit status {done.returncode}); the end of its output:\n{tail}")
    return json.loads(result.read_text(encoding="utf-8"))


def environment(threads: int, device: str = "cpu") -> dict[str, str]:
    """The same surroundings for everybody: one device, `threads` threads that sleep while they wait (spinning
    ones cost a factor as soon as anything else runs), no hub."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "" if device == "cpu" else os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
    }


def positive(text: str) -> int:
    """An argument that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)
