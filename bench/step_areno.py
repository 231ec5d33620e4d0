"""AReno's side of the benchmark: its `Trainer` with its own GSPO loss.

    python -m bench.step_areno FOLDER RESULT      (started by bench.gspo_step)

AReno's own settings for this shape: all replies at once, CUDA graphs up to their number, no activation
checkpointing, micro-batches of `MICRO_BATCH` replies; its native attention, which needs no flash-attn. Model and
training are in a process of their own, in bfloat16 over float32 master weights. Rollout is its rollout session,
train is its `train`, once an update.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.measure import matmul_gflops
from bench.step_reward import prompt_hash, reward
from bench.workload import Workload, load_workload
from tuneloop.artifacts import read_json, write_json

MICRO_BATCH = 128


def main() -> int:
    from areno import Trainer
    from areno.api import CudaConfig

    folder, result = map(Path, sys.argv[1:])
    workload = load_workload(folder)
    together = workload.boards * workload.replies
    config = CudaConfig(
        optimizer={"lr": 1e-5, "grad_clip_norm": 1.0},
        runtime={
            "attn_backend": "native",
            "activation_checkpointing": False,
            "decode_graph_buckets": [1, 8, 64, 256, together],
        },
        max_running_prompts=together,
    )
    trainer = Trainer(world_size=1, model_path=str(folder / "policy"), custom_config=config)
    trainer.init()
    tokenizer = trainer.get_tokenizer()
    prompts = tokenizer(read_json(folder / "prompts.json"))["input_ids"][: workload.boards]
    steps = []
    for number in range(workload.steps + 1):  # the first warms up
        steps.append(asyncio.run(step(trainer, workload, prompts)))
        print(number, steps[-1], flush=True)
        write_json(
            result,
            {
                "steps": steps[1:],
                "peak_mib": 0.0,  # in another process
                "gflops": 0.0,
                "start_mib": 0.0,
                "prompts": prompt_hash(prompts),
                "version": installed(),
            },
        )
    trainer.close()
    write_json(result, {**read_json(result), "gflops": matmul_gflops(workload.device)})
    return 0


async def step(trainer: object, workload: Workload, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Seconds of the rollout and of the rest of one step."""
    from areno.api import SamplingParams, TrainSequence, gspo_loss_fn
    from areno.api.rewards import compute_group_advantages

    started = time.perf_counter()
    sampling = SamplingParams(max_new_tokens=workload.new_tokens, ignore_eos=True)
    async with trainer.rollout_session(sampling_params=sampling, proxy=False):
        results = trainer.rollout_token_batch([list(p) for p in prompts], workload.replies, sampling)
    rolled = time.perf_counter()
    groups = []
    for prompt, found in zip(prompts, results, strict=True):
        replies = found.sequences
        if any(len(reply.resp_tokens) != workload.new_tokens for reply in replies):
            raise RuntimeError(f"replies of {sorted({len(r.resp_tokens) for r in replies})} tokens")
        advantages = compute_group_advantages([reward(reply.resp_tokens) for reply in replies])
        groups.append(
            [
                TrainSequence(
                    tokens=[*prompt, *reply.resp_tokens],
                    logprobs=[0.0] * len(prompt) + reply.resp_logprobs,
                    prompt_len=len(prompt),
                    scalar_advantage=advantage,
                )
                for reply, advantage in zip(replies, advantages, strict=True)
            ]
        )
    for update in range(workload.updates):
        part = [sequence for group in groups[update :: workload.updates] for sequence in group]
        trainer.train(part, gspo_loss_fn, mini_bs=MICRO_BATCH)
    return {"rollout": rolled - started, "train": time.perf_counter() - rolled}


def installed() -> str:
    try:
        return version("areno")
    except PackageNotFoundError:  # a source tree on the path
        return ""


if __name__ == "__main__":
    sys.exit(main())
