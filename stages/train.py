"""train: GSPO on the training records, from the base policy.

    python -m stages.train

Reads data/boards/{train,heldout}.jsonl and data/policy/model (`train.extra_records` adds the task's own extra
records to those of train.jsonl); writes data/train/policy (a Hugging Face
folder), history.csv (one row a step), evaluations.csv, replies.jsonl (every reply of every k-th step),
metrics.json, and the times apart in timings.csv and timings.json. A killed run continues from its last
state in .state/train and ends in the same weights.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from tuneloop import machine
from tuneloop.artifacts import read_jsonl, write_csv, write_json, write_jsonl
from tuneloop.params import Params, load_params
from tuneloop.policies.policy import load_policy, save_policy
from tuneloop.progress import Progress
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.engines import load_engine
from tuneloop.stage import stage
from tuneloop.tasks import load_task
from tuneloop.training.state import StateFolder, state_key
from tuneloop.training.trainer import Tables, Trainer

POLICY, BOARDS, OUT, STATE = Path("data/policy/model"), Path("data/boards"), Path("data/train"), Path(".state/train")
LAST = 20
"""Steps over which the last reward is averaged."""


def main() -> int:
    with stage("train"):
        started = time.perf_counter()
        params = load_params()
        device = machine.prepare(params.machine.threads)
        policy = load_policy(POLICY, device)
        engine = load_engine(policy, params.rollout)
        asker = Asker(policy, engine, load_task(params.task.name))
        records, heldout = (read_jsonl(BOARDS / f"{name}.jsonl") for name in ("train", "heldout"))
        if params.train.extra_records:
            records += asker.task.extra_records()
        trainer = Trainer(asker, engine, records, heldout, params.train, params.rollout, params.seed)
        states = StateFolder(STATE, run_key(params))
        if (state := states.load()) is not None:
            trainer.restore(state)
            print(f"continuing after step {trainer.step} of {params.train.steps} ({states.folder})", flush=True)
        with Progress("train", params.train.steps, trainer.step) as progress:
            for row in trainer.run():
                progress.advance(reward=row["reward_mean"], length=row["length_all"])
                if row["step"] % params.train.save_every == 0 and row["step"] < params.train.steps:
                    states.save(row["step"], trainer.state())
        states.save(trainer.step, trainer.state())
        save_policy(policy, OUT / "policy")
        write_tables(trainer.tables)
        write_json(OUT / "timings.json", {"seconds": round(time.perf_counter() - started, 3)})
    return 0


def run_key(params: Params) -> str:
    """The key of everything the trained weights depend on."""
    values = params.model_dump(include={"seed", "task", "rollout", "train", "machine"})
    # How often a state is saved changes no result.
    del values["train"]["save_every"]
    values["versions"] = {name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}
    code = Path(__file__).parent.parent
    return state_key(
        values, [POLICY, BOARDS / "train.jsonl", BOARDS / "heldout.jsonl", code / "tuneloop", Path(__file__)]
    )


def write_tables(tables: Tables) -> None:
    """The tables of a run, and its last steps in short."""
    write_csv(OUT / "history.csv", tables.history)
    write_csv(OUT / "evaluations.csv", tables.evaluations)
    write_jsonl(OUT / "replies.jsonl", tables.replies)
    write_csv(OUT / "timings.csv", tables.timings)
    last = tables.history[-LAST:]
    metrics = {"steps": len(tables.history), "last_reward": fmean(row["reward_mean"] for row in last)}
    write_json(OUT / "metrics.json", metrics)


if __name__ == "__main__":
    sys.exit(main())
