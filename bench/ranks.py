"""Several GPUs against one: seconds a training step at fixed work per GPU.

    python -m bench.ranks [--ranks 1 2] [--boards 32] [--replies 16] [--steps 8]

Every rank adds `--boards` boards to the step: rollout, scoring and two updates of the real `Trainer`, as
`bench.step_tuneloop` sets it up. The speed-up is over the first number of `--ranks`. Random
weights of the shape; no reply ends before `--new-tokens`. Without GPUs the ranks are processes on the CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.workload import ROOT, SHAPES, Workload, environment, load_workload, make_policy, positive
from tuneloop.artifacts import read_json, write_json
from tuneloop.errors import UserError


def main() -> int:
    if "RANK" in os.environ:
        return side(*map(Path, sys.argv[1:]))
    options = parse()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    largest = Workload(
        options.shape,
        options.boards * max(options.ranks),
        options.replies,
        options.new_tokens,
        updates=2,
        steps=options.steps,
        warm_up="full",
        threads=1,
        seed=1,
        device=device,
    )
    largest.require_sense()
    print(f"{options.shape} on {device}, {options.boards} boards x {options.replies} replies a rank, 2 updates a step")
    print(f"{'ranks':>6}{'rollout s':>11}{'train s':>10}{'step s':>9}{'speed-up':>10}")
    first = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_policy(largest, folder)
        for ranks in options.ranks:
            rollout, train = measured(replace(largest, boards=options.boards * ranks), folder, ranks)
            step = rollout + train
            first = first or (ranks, step)
            speed = ranks / first[0] * first[1] / step
            print(f"{ranks:>6}{rollout:11.4f}{train:10.4f}{step:9.4f}{speed:9.2f} x", flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.ranks", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", nargs="+", type=positive, default=[1, 2])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--boards", type=positive, default=32, help="a rank and step")
    parser.add_argument("--replies", type=positive, default=16)
    parser.add_argument("--new-tokens", type=positive, default=32)
    parser.add_argument("--steps", type=positive, default=8)
    return parser.parse_args()


def measured(workload: Workload, folder: Path, ranks: int) -> tuple[float, float]:
    """Median seconds of a step's rollout and of the rest of it, on the first rank."""
    result = folder / f"ranks{ranks}.json"
    write_json(folder / "workload.json", vars(workload))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    surroundings = environment(workload.threads, workload.device)
    if workload.device == "cuda":
        surroundings["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(ranks)))
    done = subprocess.run(
        [*command, "-m", "bench.ranks", str(folder), str(result)],
        cwd=ROOT,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-30:])
        raise UserError(f"bench.ranks: {ranks} ranks failed; the end of their output:\n{tail}")
    steps = read_json(result)
    return tuple(statistics.median(step[part] for step in steps) for part in ("rollout_seconds", "train_seconds"))


def side(folder: Path, result: Path) -> int:
    """What every rank runs."""
    from bench.step_tuneloop import trainer_over
    from tuneloop import machine
    from tuneloop.training.ranks import join

    ranks, workload = join(), load_workload(folder)
    counted = workload.steps
    device = machine.prepare(workload.threads)
    trainer = trainer_over(replace(workload, steps=counted + 2), folder, device, ranks)
    for _ in trainer.run():
        pass
    if ranks.first:
        write_json(result, trainer.tables.timings[-counted:])
    ranks.leave()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
