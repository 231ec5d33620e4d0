"""One GSPO training step, tuneloop against TRL's GRPOTrainer: seconds, memory, and how far from the floor.

    python -m bench.gspo_step --shape nano --steps 3
    python -m bench.gspo_step --shape smollm2-135m --steps 1 --rounds 1 --warm-up small
    python -m bench.gspo_step --shape smollm2-135m --device cuda --boards 64 --replies 16
    python -m bench.gspo_step --shape smollm2-135m --device cuda --boards 64 --replies 16 --peers trl_vllm areno

Both sides start from the same folder of random weights, train on the same 8 boards × 8 replies of exactly
32 tokens, pay the same reward and take two optimizer steps a rollout batch, in float32 on the CPU (on a GPU: in
bfloat16 over float32 weights), offline.
They run in turns (TRL, tuneloop, TRL, tuneloop, …), each time in a process of its own, so that peak memory
is its own and a machine that slows down slows both. What differs between the sides stands in
bench/step_tuneloop.py and in those of the peers: bench/step_trl.py, step_trl_vllm.py, step_areno.py (the last two
on a GPU only).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.floor import Operations, repeated_prompts, shared_prompts
from bench.workload import SHAPES, Workload, make_policy, positive, run_child
from tuneloop.artifacts import write_json
from tuneloop.errors import UserError

UPDATES = 2
PRECISIONS = {"cpu": "CPU, float32", "cuda": "GPU, bfloat16 over float32 weights"}
OURS = "tuneloop"
SIDES: Mapping[str, Callable[..., Operations]] = {
    "trl": repeated_prompts,
    "trl_vllm": repeated_prompts,
    "areno": repeated_prompts,
    OURS: shared_prompts,
}
"""In the order in which they run, with the arithmetic that each does."""
PACKAGES = {"trl": ("trl",), "trl_vllm": ("trl", "vllm"), "areno": ("areno",)}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    workload = Workload(
        shape=options.shape,
        boards=options.boards,
        replies=options.replies,
        new_tokens=options.new_tokens,
        updates=UPDATES,
        steps=options.steps,
        warm_up=options.warm_up,
        threads=options.threads,
        seed=2026,
        device=options.device,
    )
    try:
        workload.require_sense()
        found = measured(workload, [options.only] if options.only else [*options.peers, OURS], options.rounds)
    except UserError as error:
        print(f"gspo_step: {error}", file=sys.stderr)
        return 2
    print("\n".join(table(found)))
    if options.json:
        write_json(options.json, found)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.gspo_step", description=__doc__.splitlines()[0])
    made.add_argument("--shape", choices=SHAPES, default="nano", help="size of the model (default %(default)s)")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    made.add_argument("--threads", type=positive, default=2, help="of every process (default %(default)s)")
    made.add_argument("--steps", type=positive, default=3, help="measured steps a process (default %(default)s)")
    made.add_argument("--rounds", type=positive, default=2, help="processes a side (default %(default)s)")
    made.add_argument("--boards", type=positive, default=8, help="a step (default %(default)s)")
    made.add_argument("--replies", type=positive, default=8, help="a board (default %(default)s)")
    made.add_argument("--new-tokens", type=positive, default=32, help="of every reply (default %(default)s)")
    made.add_argument(
        "--warm-up",
        choices=("full", "small"),
        default="full",
        help="before the measured steps: a whole step, or one of 2 boards, 2 replies, 4 tokens (default %(default)s)",
    )
    made.add_argument("--peers", choices=tuple(PACKAGES), nargs="+", default=["trl"], help="default: trl")
    made.add_argument("--only", choices=tuple(SIDES), help="run one side alone")
    made.add_argument("--json", type=Path, help="also write every number to this file")
    return made


def measured(workload: Workload, sides: Sequence[str], rounds: int) -> dict[str, Any]:
    """Every number of the benchmark; medians over all measured steps, peaks over all processes."""
    for side in sides:
        missing = [name for name in PACKAGES.get(side, ()) if importlib.util.find_spec(name) is None]
        if missing:
            hint = "pip install -e '.[dev]'" if missing == ["trl"] else "see bench/step_" + side + ".py"
            raise UserError(f"{' and '.join(missing)} is not installed: {hint}, or run --only tuneloop")
    with tempfile.TemporaryDirectory(prefix="gspo-step-") as name:
        folder = Path(name)
        policy = make_policy(workload, folder)
        runs = []
        for number in range(1, rounds + 1):
            for side in sides:
                run = run_child(f"bench.step_{side}", [folder], workload.threads, workload.device)
                runs.append({"side": side, "round": number, **run})
                print(progress(runs[-1]), file=sys.stderr, flush=True)
    if len({run["prompts"] for run in runs}) > 1:
        raise UserError("the sides saw different prompts: their tokenizers disagree, so nothing can be compared")
    rate = max(run["gflops"] for run in runs)
    summary = {side: summarised([run for run in runs if run["side"] == side]) for side in sides}
    sizes = (policy, workload.replies, workload.new_tokens, workload.updates)
    for side, row in summary.items():
        operations = SIDES[side](*sizes)
        row |= {"gflop": operations.whole / 1e9, "floor_seconds": operations.whole / 1e9 / rate}
        row["floor_rollout_seconds"] = operations.rollout / 1e9 / rate
        row["floor_train_seconds"] = operations.train / 1e9 / rate
        row["times_floor"] = row["step_seconds"] / row["floor_seconds"]
    return {"workload": asdict(workload), "policy": policy, "gflops": rate, "runs": runs, "summary": summary}


def summarised(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps = [step for run in runs for step in run["steps"]]
    return {
        "rollout_seconds": median(step["rollout"] for step in steps),
        "train_seconds": median(step["train"] for step in steps),
        "step_seconds": median(step["rollout"] + step["train"] for step in steps),
        "step_seconds_least": min(step["rollout"] + step["train"] for step in steps),
        "step_seconds_most": max(step["rollout"] + step["train"] for step in steps),
        "peak_mib": max(run["peak_mib"] for run in runs),
        "start_mib": max(run["start_mib"] for run in runs),
        "steps": len(steps),
        "version": runs[0].get("version", ""),
    }


def progress(run: Mapping[str, Any]) -> str:
    steps = ", ".join(f"{s['rollout']:.3f} + {s['train']:.3f}" for s in run["steps"])
    return f"round {run['round']}, {run['side']}: rollout + train seconds {steps}; peak {run['peak_mib']:,.0f} MiB"


ROWS = (
    ("rollout (s)", "rollout_seconds", "{:,.3f}"),
    ("train (s)", "train_seconds", "{:,.3f}"),
    ("whole step (s)", "step_seconds", "{:,.3f}"),
    ("  fastest", "step_seconds_least", "{:,.3f}"),
    ("  slowest", "step_seconds_most", "{:,.3f}"),
    ("peak memory (MiB)", "peak_mib", "{:,.0f}"),
    ("  before the steps", "start_mib", "{:,.0f}"),
    ("arithmetic (GFLOP)", "gflop", "{:,.1f}"),
    ("floor (s)", "floor_seconds", "{:,.3f}"),
    ("  rollout", "floor_rollout_seconds", "{:,.3f}"),
    ("  train", "floor_train_seconds", "{:,.3f}"),
    ("step / floor", "times_floor", "{:,.1f}"),
)


def table(found: Mapping[str, Any]) -> list[str]:
    """The lines of the printed table; of two sides the last column says how many times the other's number the first's
    is."""
    workload, policy, summary = found["workload"], found["policy"], found["summary"]
    sides = list(summary)
    lengths = policy["prompt_tokens"]
    lines = [
        f"{workload['shape']}: {policy['parameters']:,} parameters; {workload['boards']} boards × "
        f"{workload['replies']} replies × {workload['new_tokens']} tokens, {workload['updates']} updates; prompts of "
        f"{min(lengths)}–{max(lengths)} tokens ({policy['shared_prefix']} shared by all)",
        f"{PRECISIONS[workload['device']]}, {workload['threads']} threads; medians of {summary[sides[0]]['steps']} "
        f"steps a side after a {workload['warm_up']} warm-up step; matmul {found['gflops']:.0f} GFLOP/s",
        "",
    ]
    names = [f"{side} {summary[side]['version']}".strip() for side in sides]
    both = len(sides) == 2
    lines.append(f"{'':20}" + "".join(f"{name:>14}" for name in names) + (f"{'ratio':>10}" if both else ""))
    for label, key, form in ROWS:
        line = f"{label:20}" + "".join(f"{form.format(summary[side][key]):>14}" for side in sides)
        if both:
            first, other = (summary[side][key] for side in sides)
            line += f"{first / other:>9.2f}×" if other else f"{'':>10}"
        lines.append(line)
    return lines


if __name__ == "__main__":
    sys.exit(main())
