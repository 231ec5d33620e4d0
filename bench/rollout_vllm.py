"""Sampling with vLLM against the torch engine: tokens a second and their ratio, in one process, in turns.

    python -m bench.rollout_vllm                                            on a CPU: 64 replies, float32
    python -m bench.rollout_vllm --replies 128 1024 --dtype bfloat16        on a GPU

Wants the package vllm: tests/rollout/on_vllm.sh makes an environment for the CPU, docs/vllm.md says what a GPU wants.
Both engines have the same policy (random weights in the shape of SmolLM2-135M if `--policy` names no folder), the
same prompts, groups of 8 and replies of exactly `--new-tokens` tokens. Each sampling follows a change of the weights,
as in training, and so includes the push to vLLM with its proof; that part is also given apart. The first sampling
of each engine is not counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from bench.workload import ROOT, Workload, make_policy, positive
from tuneloop import machine
from tuneloop.artifacts import write_json
from tuneloop.errors import UserError
from tuneloop.params import VllmParams, load_params
from tuneloop.policies.policy import Policy, load_policy
from tuneloop.rollout.contract import Engine, Sampling, reply_seed
from tuneloop.rollout.engines import load_engine
from tuneloop.tasks import load_task

GROUP = 8
SEED = 2026


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        found = measured(options)
    except UserError as error:
        print(f"rollout_vllm: {error}", file=sys.stderr)
        return 2
    print("\n".join(table(found)))
    if options.json:
        write_json(options.json, found)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.rollout_vllm", description=__doc__.splitlines()[0])
    made.add_argument("--replies", type=positive, nargs="+", default=[64], help="sizes of a sampling (default 64)")
    made.add_argument("--new-tokens", type=positive, default=32, help="of every reply (default %(default)s)")
    made.add_argument("--rounds", type=positive, default=3, help="counted samplings a size (default %(default)s)")
    made.add_argument("--threads", type=positive, default=2, help="of the CPU (default %(default)s)")
    made.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="(default %(default)s)")
    made.add_argument("--policy", type=Path, help="a policy's folder instead of random weights")
    made.add_argument("--json", type=Path, help="also write every number to this file")
    return made


def measured(options: argparse.Namespace) -> dict:
    """Seconds of every sampling by size and engine, and of vLLM's pushes."""
    device = machine.prepare(options.threads)
    with tempfile.TemporaryDirectory(prefix="rollout-vllm-") as name:
        folder = options.policy
        if folder is None:
            make_policy(
                Workload("smollm2-135m", 8, 8, options.new_tokens, 1, 1, "small", options.threads, SEED), Path(name)
            )
            folder = Path(name) / "policy"
        policy = load_policy(folder, device)
    policy.model.generation_config.eos_token_id = []  # nothing ends a reply: both sides sample as many tokens
    task = load_task("tictactoe")
    records = task.generate(-(-max(options.replies) // GROUP), SEED)
    prompts = [policy.prompt_ids(task.messages(record), task.tools) for record in records]
    engines = both_engines(policy, options.dtype, max(map(len, prompts)) + options.new_tokens)
    sizes = []
    for replies in options.replies:
        runs: dict[str, list[float]] = {side: [] for side in engines}
        pushes: list[float] = []
        for number in range(options.rounds + 1):
            for side, engine in engines.items():
                seconds, push = sample(engine, policy, prompts, replies, options.new_tokens, number)
                if number:
                    runs[side].append(seconds)
                    pushes += [push] if side == "vllm" else []
                print(f"{replies} replies, {side}: {seconds:.2f} s", file=sys.stderr, flush=True)
        tokens = replies * options.new_tokens
        sizes.append(
            {
                "replies": replies,
                "seconds": runs,
                "push_seconds": pushes,
                "tokens_per_second": {side: tokens / median(times) for side, times in runs.items()},
            }
        )
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {options.threads} threads",
        "dtype": options.dtype,
        "parameters": sum(p.numel() for p in policy.model.parameters()),
        "prompt_tokens": [min(map(len, prompts)), max(map(len, prompts))],
        "new_tokens": options.new_tokens,
        "sizes": sizes,
    }


def both_engines(policy: Policy, dtype: str, longest: int) -> dict[str, Engine]:
    """In the order in which they run."""
    params = load_params(ROOT / "params.yaml").rollout
    room = VllmParams(dtype=dtype, memory_share=0.1, max_model_len=longest)
    vllm = load_engine(policy, params.model_copy(update={"engine": "vllm", "vllm": room}))
    ours = load_engine(policy, params.model_copy(update={"engine": "torch"}), getattr(torch, dtype))
    return {"vllm": vllm, "torch": ours}


def sample(
    engine: Engine, policy: Policy, prompts: Sequence[Sequence[int]], replies: int, new_tokens: int, number: int
) -> tuple[float, float]:
    """Seconds of one sampling after a change of the weights, and those of it that pass before the first reply is
    asked for (measured as one more, tiny sampling)."""
    asked = prompts[: -(-replies // GROUP)]
    seeds = [[reply_seed(SEED, number, b, i) for i in range(GROUP)] for b in range(len(asked))]
    seeds[-1] = seeds[-1][: replies - GROUP * (len(asked) - 1)]
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.0001)
    settle()
    started = time.perf_counter()
    engine.weights_changed()
    engine.generate(asked[:1], [[0]], Sampling(1))
    settle()
    pushed = time.perf_counter() - started
    groups = engine.generate(asked, seeds, Sampling(new_tokens))
    settle()
    lengths = {len(reply.ids) for group in groups for reply in group}
    if lengths != {new_tokens}:
        raise UserError(f"replies of {sorted(lengths)} tokens instead of {new_tokens}: nothing can be compared")
    return time.perf_counter() - started, pushed


def settle() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def table(found: dict) -> list[str]:
    low, high = found["prompt_tokens"]
    lines = [
        f"{found['parameters']:,} parameters, {found['dtype']}, {found['device']}; prompts of {low}–{high} tokens, "
        f"groups of {GROUP}, {found['new_tokens']} tokens a reply; medians of {len(found['sizes'][0]['push_seconds'])}",
        "",
        f"{'replies':>8}{'vllm tok/s':>12}{'torch tok/s':>13}{'torch / vllm':>14}{'push (s)':>10}",
    ]
    for size in found["sizes"]:
        vllm, ours = (size["tokens_per_second"][side] for side in ("vllm", "torch"))
        rates = f"{vllm:>12,.0f}{ours:>13,.0f}{ours / vllm:>13.2f}×"
        lines.append(f"{size['replies']:>8}{rates}{median(size['push_seconds']):>10.2f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
