"""Rollouts on a GPU: tuneloop's graph-captured engine beside transformers' `generate`, same weights, same prompts.

    python -m bench.rollout_gpu [--shapes smollm2-135m nano] [--batches 16x8 64x16] [--rounds 3] [--dtype bfloat16]

A batch of BxG is B prompts with G sampled replies each of exactly `--new-tokens` tokens: nothing ends one. Weights
and prompts are random; the prompts share most of their tokens, as a task's do. Both sides compute in the same
precision; `generate` runs with scaled-dot-product attention and its default cache, every reply with its own copy of
the prompt. They take turns; each has two calls to warm up, which no number counts. Each of our calls takes the
weights over and computes the shared prefix anew, as after an update.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from bench.step_policy import random_model
from bench.workload import SHAPES, positive
from tuneloop.errors import UserError
from tuneloop.rollout.contract import Sampling
from tuneloop.rollout.graph_engine import GraphEngine

PROMPTS = {"smollm2-135m": (193, 42), "nano": (24, 20)}
"""Tokens of a Tic-Tac-Toe prompt: shared by all, a board's own."""


def main() -> int:
    options = parse()
    if not torch.cuda.is_available():
        raise UserError("bench.rollout_gpu: needs a CUDA device, and torch sees none")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.new_tokens} new tokens, {options.dtype}"
    )
    print(f"{'shape':14}{'replies':>12}  {'':18}{'s':>9}{'tokens/s':>12}{'ms/token':>10}{'ratio':>8}")
    found = []
    for shape in options.shapes:
        model = random_model(shape, 2, 2, seed=1).cuda().to(getattr(torch, options.dtype)).eval()
        for groups, replies in options.batches:
            found += compare(shape, model, groups, replies, options.new_tokens, options.rounds)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.rollout_gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["smollm2-135m", "nano"])
    parser.add_argument("--batches", nargs="+", type=batch, default=[(16, 8), (64, 16)], metavar="BxG")
    parser.add_argument("--new-tokens", type=positive, default=32)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--json", type=Path, help="write the numbers of every call")
    return parser.parse_args()


def batch(text: str) -> tuple[int, int]:
    groups, _, replies = text.partition("x")
    return positive(groups), positive(replies)


def compare(
    shape: str, model: PreTrainedModel, groups: int, replies: int, new_tokens: int, rounds: int
) -> list[dict[str, object]]:
    """One row a side: median seconds of a call, over `rounds` calls in turn."""
    prompts = random_prompts(*PROMPTS[shape], groups, model.config.vocab_size)
    sides = {
        "generate": peer(model, prompts, replies, new_tokens),
        "tuneloop": ours(model, prompts, replies, new_tokens),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(2 + rounds):
        for name, call in sides.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            call(turn)
            torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(times[2:]) for name, times in seconds.items()}
    rows = []
    for name, median in medians.items():
        ratio = medians["generate"] / median
        speed = groups * replies * new_tokens / median
        row = {"shape": shape, "groups": groups, "replies": replies, "side": name, "seconds": seconds[name]}
        rows.append(row | {"median": median, "tokens_per_second": speed, "ratio": ratio})
        line = f"{shape:14}{groups:>6} x {replies:<3}  {name:18}{median:9.4f}{speed:12,.0f}"
        print(line + f"{median / new_tokens * 1e3:10.3f}{ratio:8.1f}", flush=True)
    return rows


def random_prompts(shared: int, own: int, groups: int, vocabulary: int) -> list[list[int]]:
    """Of equal length, which suits a static batch."""
    draw = torch.Generator().manual_seed(0)
    prefix = torch.randint(3, vocabulary, (shared,), generator=draw).tolist()
    return [[*prefix, *row] for row in torch.randint(3, vocabulary, (groups, own), generator=draw).tolist()]


def peer(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], replies: int, new_tokens: int
) -> Callable[[int], None]:
    model.generation_config.eos_token_id = None
    ids = torch.tensor(prompts, device=model.device)

    def call(turn: int) -> None:
        torch.manual_seed(turn)
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            num_return_sequences=replies,
            max_new_tokens=new_tokens,
            pad_token_id=0,
        )
        assert found.shape == (len(prompts) * replies, ids.shape[1] + new_tokens)

    return call


def ours(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], replies: int, new_tokens: int
) -> Callable[[int], None]:
    engine = GraphEngine(model, [])

    def call(turn: int) -> None:
        engine.weights_changed()
        seeds = [
            [hash((turn, group, reply)) & (2**64 - 1) for reply in range(replies)] for group in range(len(prompts))
        ]
        groups = engine.generate(prompts, seeds, Sampling(new_tokens))
        assert all(len(reply.ids) == new_tokens for group in groups for reply in group)

    return call


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
