"""Updates on a GPU: seconds, tokens a second, and what share of the GPU's arithmetic a training step's updates use.

    python -m bench.update_gpu [--shape smollm2-135m] [--boards 64] [--replies 16] [--dtype bfloat16] [--profile]

One step's updates: `--updates` optimizer steps over `--boards` groups of `--replies` replies of `--new-tokens` tokens,
prompts as long as a Tic-Tac-Toe board's, weights and tokens random. "log p" is one pass without gradient over the
same replies: what old log-probabilities by the trainer cost, and those of the base policy again.

Model FLOPs are those of the products with the weights and of attention, three times the forward pass's, for every
token that is computed on once (shared prompts once): what is computed a second time counts for nothing. Their share is
of the rate that a product of two 8192 x 8192 bfloat16 matrices reaches in the same process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

from bench.rollout_gpu import PROMPTS, random_prompts
from bench.step_policy import random_model
from bench.workload import SHAPES, positive
from tuneloop import machine
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import PromptTree, prompt_tree
from tuneloop.training.batch import Group, logprobs_of
from tuneloop.training.objectives import OBJECTIVES, Clip
from tuneloop.training.trainer import COMPUTE
from tuneloop.training.update import accumulate, apply


def main() -> int:
    options = parse()
    device = machine.prepare(2)
    model = random_model(options.shape, 2, 2, seed=1).to(device).eval()
    decoder = DenseDecoder(model, COMPUTE[options.dtype], options.checkpoint_layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    groups = random_groups(options, model.config.vocab_size)
    micro = options.micro_batch_replies or options.boards * options.replies

    def score() -> None:
        logprobs_of(decoder, groups, 1.0, micro)

    def update() -> None:
        for u in range(options.updates):
            part = groups[u :: options.updates]
            log = accumulate(decoder, part, OBJECTIVES["gspo"], Clip(0.1, 0.1), 1.0, options.new_tokens, micro)
            apply(list(model.parameters()), optimizer, 1.0, log)

    rate = matmul_rate(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    flops, tokens = 0.0, 0
    for u in range(options.updates):
        part = groups[u :: options.updates]
        tree = prompt_tree([g.prompt for g in part], [g.replies for g in part])
        flops, tokens = flops + 3 * forward_flops(decoder, tree), tokens + len(tree.ids)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {options.shape}, {options.dtype}, {micro} replies at once")
    print(f"{options.boards} x {options.replies} replies of {options.new_tokens} tokens, {options.updates} updates")
    seconds = {"updates": timed(update, options.rounds, device), "log p": timed(score, options.rounds, device)}
    for what, found in seconds.items():
        share = flops * (1 if what == "updates" else 1 / 3) / found / rate
        print(f"{what:10}{found:9.4f} s{tokens / found:12,.0f} tokens/s{share:8.1%} of {rate / 1e12:.0f} TFLOP/s")
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    if options.profile:
        profile(update)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.update_gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--boards", type=positive, default=64)
    parser.add_argument("--replies", type=positive, default=16)
    parser.add_argument("--new-tokens", type=positive, default=32)
    parser.add_argument("--updates", type=positive, default=2)
    parser.add_argument("--micro-batch-replies", type=positive, help="default: all replies of an update")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--dtype", choices=list(COMPUTE), default="bfloat16")
    parser.add_argument("--checkpoint-layers", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print what takes the time")
    return parser.parse_args()


def random_groups(options: argparse.Namespace, vocabulary: int) -> list[Group]:
    """Old log-probabilities are of no distribution: they change ratios, not the time that they take."""
    draw = torch.Generator().manual_seed(1)
    shape = (options.boards, options.replies, options.new_tokens)
    replies = torch.randint(3, vocabulary, shape, generator=draw).tolist()
    old = (-10 - torch.rand(shape, generator=draw)).tolist()
    advantages = torch.randn(shape[:2], generator=draw).tolist()
    prompts = random_prompts(*PROMPTS[options.shape], options.boards, vocabulary)
    return [Group(*row) for row in zip(prompts, replies, old, advantages)]


def forward_flops(decoder: DenseDecoder, tree: PromptTree) -> float:
    """Of one forward pass over the tree, and of the head for every reply token."""
    model = decoder.model
    body = sum(p.numel() for p in model.model.layers.parameters())
    pairs = sum(position + 1 for position in tree.positions.tolist())
    attention = 4 * decoder.heads * decoder.head_width * model.config.num_hidden_layers * pairs
    return 2.0 * body * len(tree.ids) + attention + 2.0 * decoder.head.numel() * len(tree.reply_ids)


def matmul_rate(device: torch.device) -> float:
    """FLOP/s."""
    size = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return 2 * size**3 / timed(lambda: a @ b, 10, device)


def timed(call: Callable[[], object], rounds: int, device: torch.device) -> float:
    """Median seconds, after two calls that no number counts."""
    seconds = []
    for _ in range(2 + rounds):
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:])


def profile(call: Callable[[], None]) -> None:
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as found:
        call()
        torch.cuda.synchronize()
    print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=28, max_name_column_width=60))


if __name__ == "__main__":
    sys.exit(main())
