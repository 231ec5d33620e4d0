"""policy: the base policy, from the catalogue, warm-started where its preset asks for it.

    python -m stages.policy

Reads data/boards/train.jsonl; writes data/policy/model (an ordinary Hugging Face folder with the card
tuneloop.json), metrics.json, and timings.json. A model without warm start is copied as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer

from tuneloop import machine
from tuneloop.artifacts import read_jsonl, write_json
from tuneloop.params import Params, load_params
from tuneloop.policies.catalogue import Built, build_policy, copy_policy, policy_card, weights_folder
from tuneloop.policies.forecast import forecast, hours, lengths, matmul_rate
from tuneloop.policies.hub import parameter_count
from tuneloop.policies.policy import save_policy
from tuneloop.policies.presets import preset_of
from tuneloop.progress import Progress
from tuneloop.stage import stage
from tuneloop.tasks import load_episodes, load_task
from tuneloop.tasks.contract import Record, Task

OUT = Path("data/policy")


def main() -> int:
    with stage("policy"):
        started = time.perf_counter()
        params = load_params()
        device = machine.prepare(params.machine.threads)
        folder = weights_folder(params.policy)  # says what is missing before any work
        task, records = load_task(params.task.name), read_jsonl("data/boards/train.jsonl")
        if folder is not None:
            _announce(params, folder, task, records, device)
        if folder is not None and params.policy.warm_start.updates == 0:
            tokenizer = copy_policy(folder, params.policy, params.rollout.thinking, OUT / "model")
            parameters, losses = parameter_count(folder), []
        else:
            built = _build(params, task, records, device)
            save_policy(built.policy, OUT / "model")
            tokenizer, losses = built.policy.tokenizer, built.losses
            parameters = sum(p.numel() for p in built.policy.model.parameters())
        last = losses[-20:]
        write_json(
            OUT / "metrics.json",
            {
                "parameters": parameters,
                "vocabulary": len(tokenizer),
                "warm_start_loss": sum(last) / len(last) if last else None,
            },
        )
        write_json(OUT / "timings.json", {"seconds": round(time.perf_counter() - started, 3)})
    return 0


def _build(params: Params, task: Task, records: Sequence[Record], device: torch.device) -> Built:
    episodes = load_episodes(task, params.task.mode, params.task.opponent, params.task.reward_at)
    with Progress("policy", params.policy.warm_start.updates) as progress:
        return build_policy(
            params.policy,
            task,
            records,
            thinking=params.rollout.thinking,
            max_new_tokens=params.rollout.max_new_tokens,
            seed=params.seed,
            device=device,
            progress=lambda update, loss: progress.advance(loss=loss),
            episodes=episodes,
        )


def _announce(params: Params, folder: Path, task: Task, records: Sequence[Record], device: torch.device) -> None:
    """Say what comes, while it costs nothing to stop: what cannot be trained, and hours on a CPU."""
    preset = preset_of(params.policy.source, params.policy.like)
    if preset is not None and preset.training is not None:
        print(f"[policy] {preset.name} is for evaluation (`dvc repro baseline`): {preset.training}", flush=True)
    if device.type != "cpu":
        return
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    card = policy_card(params.policy, tokenizer, params.rollout.thinking)
    heldout = round(params.boards.count * params.boards.heldout_fraction)
    length = lengths(tokenizer, card, task, records, params.rollout.max_new_tokens)
    parameters, rate = parameter_count(folder), matmul_rate()
    if (line := forecast(hours(params, parameters, length, heldout, rate), parameters, rate)) is not None:
        print(f"[policy] {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
