"""The peer's side of the benchmark: TRL's `GRPOTrainer` set to GSPO.

    python -m bench.step_trl FOLDER RESULT      (started by bench.gspo_step; bench.step_trl_vllm is the same with vLLM)

Set as TRL's own paper index gives for GSPO (sequence-level ratios, loss "grpo", no KL), with one rollout
batch shared by `updates` optimizer steps. Its defaults are kept but for what the comparison fixes
(float32 instead of bfloat16, lengths, learning rate) and gradient checkpointing, which is off: it would
only make TRL slower here, and memory is not short. Replies have exactly `new_tokens` tokens through
`min_new_tokens`. Rollout is the time inside `model.generate`, train is all the rest of a step. With vLLM (in the
same process, 0.3 of the GPU's memory) rollout is vLLM's generation and the handing over of weights before it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.measure import matmul_gflops, peak_mib, settle
from bench.step_reward import prompt_hash, reward
from bench.workload import ROOT, Workload, load_workload
from tuneloop.artifacts import read_json, write_json
from tuneloop.params import load_params

VLLM_LENGTH = 1024
"""Tokens of a prompt and its reply, at most: room for keys and values."""


def main(vllm: bool = False) -> int:
    folder, result = map(Path, sys.argv[1:])
    workload = load_workload(folder)
    torch.set_num_threads(workload.threads)
    small = workload.warm_up == "small"
    if small:
        trainer_over(replace(workload, boards=2, replies=2, new_tokens=4, steps=1), folder, vllm)[0].train()
        gc.collect()  # else its optimizer would count as memory of the measured one
    counted = workload.steps
    trainer, clock = trainer_over(replace(workload, steps=counted if small else counted + 1), folder, vllm)
    start = peak_mib(workload.device)
    trainer.train()
    write_json(
        result,
        {
            "steps": clock.steps[-counted:],
            "peak_mib": peak_mib(workload.device),  # before the matrices of the next line
            "gflops": matmul_gflops(workload.device),
            "start_mib": start,
            "prompts": prompt_hash(trainer.processing_class(text=read_json(folder / "prompts.json"))["input_ids"]),
            "version": trl.__version__,
        },
    )
    return 0


class Clock(TrainerCallback):
    """Times of every step: from the beginning of its first optimizer step to the end of its last."""

    def __init__(self, updates: int):
        self.updates, self.steps = updates, []
        self.begun = self.generating = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.updates == 0:
            settle()
            self.begun, self.generating = time.perf_counter(), 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.updates == 0:
            settle()
            whole = time.perf_counter() - self.begun
            self.steps.append({"rollout": self.generating, "train": whole - self.generating})

    def time(self, owner: Any, name: str) -> None:
        """Count the time inside the method `name` of `owner` as rollout."""
        method = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                settle()
                self.generating += time.perf_counter() - started

        setattr(owner, name, timed)


def trainer_over(workload: Workload, folder: Path, vllm: bool = False) -> tuple[GRPOTrainer, Clock]:
    """A trainer that takes `workload.steps` steps over the first `workload.boards` boards, and its clock."""
    train = load_params(ROOT / "params.yaml").train

    def pay(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        if any(len(ids) != workload.new_tokens for ids in completion_ids):
            raise RuntimeError(f"replies of {sorted(map(len, completion_ids))} tokens, not {workload.new_tokens}")
        return [reward(ids) for ids in completion_ids]

    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        importance_sampling_level="sequence",
        loss_type="grpo",
        beta=0.0,
        epsilon=train.clip_low,
        epsilon_high=train.clip_high,
        per_device_train_batch_size=workload.boards * workload.replies // workload.updates,
        gradient_accumulation_steps=1,
        steps_per_generation=workload.updates,
        num_generations=workload.replies,
        max_completion_length=workload.new_tokens,
        max_steps=workload.steps * workload.updates,
        temperature=1.0,
        # Ids above the tokenizer's have no text.
        generation_kwargs={"ignore_eos": True, "detokenize": False}
        if vllm
        else {"min_new_tokens": workload.new_tokens},
        **({"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": VLLM_LENGTH} if vllm else {}),
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        adam_beta2=0.99,
        max_grad_norm=train.max_grad_norm,
        bf16=workload.device == "cuda",
        gradient_checkpointing=False,
        use_cpu=workload.device == "cpu",
        seed=workload.seed,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(folder / "policy", local_files_only=True, dtype=torch.float32)
    clock = Clock(workload.updates)
    prompts = read_json(folder / "prompts.json")[: workload.boards]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=pay,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(folder / "policy", local_files_only=True),
        callbacks=[clock],
    )
    if vllm:
        clock.time(trainer.vllm_generation, "sync_weights")
        clock.time(trainer.vllm_generation, "generate")
    else:
        clock.time(model, "generate")
    return trainer, clock


if __name__ == "__main__":
    sys.exit(main())
