"""policy: the base policy, from the catalogue, warm-started where its preset asks for it.

    python -m stages.policy

Reads data/boards/train.jsonl; writes data/policy/model (an ordinary Hugging Face folder with the card
tuneloop.json), metrics.json, and timings.json.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tuneloop import machine
from tuneloop.artifacts import read_jsonl, write_json
from tuneloop.params import load_params
from tuneloop.policies.catalogue import build_policy
from tuneloop.policies.policy import save_policy
from tuneloop.progress import Progress
from tuneloop.stage import stage
from tuneloop.tasks import load_task

OUT = Path("data/policy")


def main() -> int:
    with stage("policy"):
        started = time.perf_counter()
        params = load_params()
        device = machine.prepare(params.machine.threads)
        records = read_jsonl("data/boards/train.jsonl")
        with Progress("policy", params.policy.warm_start.updates) as progress:
            built = build_policy(
                params.policy,
                load_task(params.task.name),
                records,
                thinking=params.rollout.thinking,
                max_new_tokens=params.rollout.max_new_tokens,
                seed=params.seed,
                device=device,
                progress=lambda update, loss: progress.advance(loss=loss),
            )
        save_policy(built.policy, OUT / "model")
        last = built.losses[-20:]
        write_json(
            OUT / "metrics.json",
            {
                "parameters": sum(p.numel() for p in built.policy.model.parameters()),
                "vocabulary": len(built.policy.tokenizer),
                "warm_start_loss": sum(last) / len(last) if last else None,
            },
        )
        write_json(OUT / "timings.json", {"seconds": round(time.perf_counter() - started, 3)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
