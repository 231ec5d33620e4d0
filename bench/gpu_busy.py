"""Share of a training step in which the GPU computes, in rollout and in training.

    python -m bench.gpu_busy [--shape smollm2-135m] [--boards 64] [--replies 16] [--new-tokens 32] [--steps 5]

The step is that of bench.step_tuneloop. Its seconds are medians over steps without a profiler, which would slow the
host down; the GPU's are the durations of all kernels and copies that torch's profiler saw in further steps. Nothing
overlaps: there is one stream.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from bench.step_tuneloop import trainer_over
from bench.workload import SHAPES, Workload, make_policy, positive
from tuneloop import machine
from tuneloop.errors import UserError
from tuneloop.training.trainer import Trainer

WARM_UP = 3
"""Steps: graphs are captured for every number of replies that is still being written."""


def main() -> int:
    options = parse()
    if not torch.cuda.is_available():
        raise UserError("bench.gpu_busy: needs a CUDA device, and torch sees none")
    workload = Workload(
        options.shape,
        options.boards,
        options.replies,
        options.new_tokens,
        updates=2,
        steps=WARM_UP + 3 * options.steps,
        warm_up="full",
        threads=options.threads,
        seed=1,
        device="cuda",
    )
    workload.require_sense()
    with tempfile.TemporaryDirectory() as name:
        make_policy(workload, Path(name))
        trainer = trainer_over(workload, Path(name), machine.prepare(options.threads))
    seconds, kernels = measured(trainer, options.steps)
    size = f"{options.boards} x {options.replies} replies of {options.new_tokens} tokens"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.shape}, {size}, 2 updates, bfloat16")
    print(f"{'':10}{'s':>9}{'GPU s':>9}{'busy':>8}")
    for part in ("rollout", "train", "step"):
        busy = kernels[part] / seconds[part]
        print(f"{part:10}{seconds[part]:9.4f}{kernels[part]:9.4f}{busy:8.1%}", flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.gpu_busy", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--boards", type=positive, default=64)
    parser.add_argument("--replies", type=positive, default=16)
    parser.add_argument("--new-tokens", type=positive, default=32)
    parser.add_argument("--steps", type=positive, default=5)
    parser.add_argument("--threads", type=positive, default=2)
    return parser.parse_args()


def measured(trainer: Trainer, steps: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of a step's parts, and those in which the GPU computed."""
    found: dict[str, list[float]] = {"rollout": [], "step": []}
    roll_out, running = trainer._roll_out, trainer.run()

    def profiled_rollout() -> object:
        with counting(found["rollout"]):
            return roll_out()

    def step(what: str, number: int) -> None:
        started = perf_counter()
        next(running)
        print(f"[gpu_busy] {what} {number + 1}: {perf_counter() - started:.2f} s", file=sys.stderr, flush=True)

    for number in range(WARM_UP):
        step("warm-up", number)
    for number in range(steps):
        step("step", number)
    trainer._roll_out = profiled_rollout
    for number in range(steps):
        step("profiled rollout", number)
    trainer._roll_out = roll_out
    for number in range(steps):
        with counting(found["step"]):
            step("profiled step", number)
    rows = trainer.tables.timings[WARM_UP : WARM_UP + steps]
    seconds = {part: median(row[f"{part}_seconds"] for row in rows) for part in ("rollout", "train")}
    seconds["step"] = median(row["rollout_seconds"] + row["train_seconds"] for row in rows)
    kernels = {part: median(values) for part, values in found.items()}
    return seconds, {**kernels, "train": kernels["step"] - kernels["rollout"]}


@contextmanager
def counting(seconds: list[float]) -> Iterator[None]:
    """Append the seconds that the GPU computed inside: summed over the raw events, since the profiler's own tables
    take seconds to build for the ten thousands of kernels of a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        yield
        torch.cuda.synchronize()
    events = profile.profiler.kineto_results.events()
    computed = [e for e in events if e.device_type() == torch.autograd.DeviceType.CUDA and not e.is_user_annotation()]
    seconds.append(sum(event.duration_ns() for event in computed) / 1e9)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
