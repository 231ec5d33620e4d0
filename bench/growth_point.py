"""One point of the growth curves: seconds and peak memory of one rollout, or of one update.

    python -m bench.growth_point FOLDER {rollout,update} REPEATS RESULT      (started by bench.cost_growth)

A rollout draws every reply of a step from the engine. An update computes the GSPO gradient over all of
them, in the micro-batches of params.yaml, and takes one optimizer step; its replies are random ids, with
the log-probabilities of a uniform policy as the old ones.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from bench.measure import peak_mib
from bench.workload import ROOT, Workload, load_workload
from tuneloop import machine
from tuneloop.artifacts import read_json, write_json
from tuneloop.params import load_params
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.policy import Policy, load_policy
from tuneloop.rollout.contract import Sampling, reply_seed
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.training.batch import Group
from tuneloop.training.objectives import OBJECTIVES, Clip
from tuneloop.training.update import accumulate, apply

NEVER_ENDS = -1


def main() -> int:
    folder, phase, repeats, result = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    workload = load_workload(folder)
    device = machine.prepare(workload.threads)
    policy = load_policy(folder / "policy", device)
    texts = read_json(folder / "prompts.json")[: workload.boards]
    prompts = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
    work = {"rollout": rollout, "update": update}[phase](policy, prompts, workload)
    loaded = peak_mib()
    work()  # a first pass finds its memory: not counted in the time
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    write_json(result, {"seconds": median(seconds), "peak_mib": peak_mib(), "loaded_mib": loaded})
    return 0


def rollout(policy: Policy, prompts: list[list[int]], workload: Workload) -> Callable[[], object]:
    engine = TorchEngine(policy.model, [NEVER_ENDS])
    seeds = [[reply_seed(workload.seed, b, i) for i in range(workload.replies)] for b in range(len(prompts))]
    return lambda: engine.generate(prompts, seeds, Sampling(workload.new_tokens))


def update(policy: Policy, prompts: list[list[int]], workload: Workload) -> Callable[[], object]:
    params = load_params(ROOT / "params.yaml").train
    draw, vocabulary = random.Random(workload.seed), policy.model.config.vocab_size
    old = [[-math.log(vocabulary)] * workload.new_tokens] * workload.replies
    groups = [
        Group(
            prompt,
            [[draw.randrange(vocabulary) for _ in range(workload.new_tokens)] for _ in range(workload.replies)],
            old,
            [draw.gauss(0, 1) for _ in range(workload.replies)],
        )
        for prompt in prompts
    ]
    decoder, parameters = DenseDecoder(policy.model), list(policy.model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    clip = Clip(params.clip_low, params.clip_high)

    def once() -> None:
        log = accumulate(
            decoder, groups, OBJECTIVES["gspo"], clip, 1.0, workload.new_tokens, params.micro_batch_replies
        )
        apply(parameters, optimizer, params.max_grad_norm, log)

    return once


if __name__ == "__main__":
    sys.exit(main())
