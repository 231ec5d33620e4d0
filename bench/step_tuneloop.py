"""tuneloop's side of the benchmark: the real `Trainer`, timed by its own timings table.

    python -m bench.step_tuneloop FOLDER RESULT      (started by bench.gspo_step)

Differs from a run of the pipeline in three things: the reward (`step_reward`), no reply can end (the
engine's end id is -1, which no token has), and rollouts are not oversampled.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bench.measure import matmul_gflops, peak_mib
from bench.step_reward import prompt_hash, reward
from bench.workload import ROOT, Workload, load_workload
from tuneloop import machine
from tuneloop.artifacts import read_jsonl, write_json
from tuneloop.params import load_params
from tuneloop.policies.policy import load_policy
from tuneloop.rollout.ask import Answer, Asker
from tuneloop.rollout.contract import Sampling
from tuneloop.rollout.graph_engine import GraphEngine
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.tasks import load_task
from tuneloop.tasks.contract import Outcome, Record
from tuneloop.training.ranks import ALONE, Ranks
from tuneloop.training.trainer import Trainer

NEVER_ENDS = -1
RARELY = 1 << 30


def main() -> int:
    folder, result = map(Path, sys.argv[1:])
    workload = load_workload(folder)
    device = machine.prepare(workload.threads)
    small = workload.warm_up == "small"
    if small:
        next(trainer_over(replace(workload, boards=2, replies=2, new_tokens=4, steps=1), folder, device).run())
        gc.collect()  # else its optimizer would count as memory of the measured one
    counted = workload.steps
    trainer = trainer_over(replace(workload, steps=counted if small else counted + 1), folder, device)
    start = peak_mib(workload.device)
    for _ in trainer.run():
        pass
    asker = trainer.asker
    write_json(
        result,
        {
            "steps": [
                {"rollout": t["rollout_seconds"], "train": t["train_seconds"]}
                for t in trainer.tables.timings[-counted:]
            ],
            "peak_mib": peak_mib(workload.device),  # before the matrices of the next line
            "gflops": matmul_gflops(workload.device),
            "start_mib": start,
            "prompts": prompt_hash([asker.prompt(r, workload.new_tokens) for r in trainer.records]),
        },
    )
    return 0


def trainer_over(workload: Workload, folder: Path, device: object, ranks: Ranks = ALONE) -> Trainer:
    """A trainer that takes `workload.steps` steps over the first `workload.boards` boards."""
    params = load_params(ROOT / "params.yaml")
    policy = load_policy(folder / "policy", device)
    gpu = workload.device == "cuda"
    engine = GraphEngine(policy.model, [NEVER_ENDS], torch.bfloat16) if gpu else TorchEngine(policy.model, [NEVER_ENDS])
    asker = Asker(policy, engine, load_task("tictactoe"))
    pay_by_hash(asker)
    records = read_jsonl(folder / "boards.jsonl")[: workload.boards]
    train = params.train
    train = train.model_copy(
        update={
            "algorithm": "gspo",
            "steps": workload.steps,
            "boards_per_step": workload.boards,
            "group_size": workload.replies,
            "oversample": 1,
            "updates_per_step": workload.updates,
            "epochs_per_step": 1,
            "lr": 1e-5,
            "lr_warmup": 0,
            "lr_final": 1.0,
            "entropy_bonus": 0.0,
            "kl_coefficient": 0.0,
            "visit": "passes",
            "dtype": "bfloat16" if gpu else "float32",
            "old_logprobs": "trainer" if gpu else "engine",
            "engine_gap_limit": 0.2 if gpu else 1e-3,
            "micro_batch_replies": workload.boards * workload.replies if gpu else train.micro_batch_replies,
            "evaluate_every": RARELY,
            "keep_replies_every": RARELY,
        }
    )
    rollout = params.rollout.model_copy(update={"max_new_tokens": workload.new_tokens, "temperature": 1.0})
    # One held-out board: the trainer evaluates before its first step and after its last, outside the timings.
    return Trainer(asker, engine, records, records[:1], train, rollout, workload.seed, ranks)


def pay_by_hash(asker: Asker) -> None:
    """Let the asker pay `step_reward.reward` in place of what the task paid for the same reply: every
    reply is still read and scored."""
    ask = asker.ask

    def paid(records: Sequence[Record], seeds: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Answer]]:
        return [
            [replace(answer, outcome=Outcome("legal", _checked_reward(answer, sampling))) for answer in group]
            for group in ask(records, seeds, sampling)
        ]

    asker.ask = paid


def _checked_reward(answer: Answer, sampling: Sampling) -> float:
    if len(answer.reply.ids) != sampling.max_new_tokens:
        raise RuntimeError(f"a reply of {len(answer.reply.ids)} tokens instead of {sampling.max_new_tokens}")
    return reward(answer.reply.ids)


if __name__ == "__main__":
    sys.exit(main())
