"""train: GSPO (or another `train.algorithm`, see docs/algorithms.md) on the training records, from the base policy.

    python -m stages.train
    torchrun --nproc-per-node 2 -m stages.train        what the first does by itself where machine.ranks is 2

Reads data/boards/{train,heldout}.jsonl and data/policy/model (`train.extra_records` adds the task's own extra
records to those of train.jsonl), and where `train.examples` names one, a file of examples/; writes data/train/policy
(a Hugging Face folder), history.csv (one row a step), evaluations.csv, replies.jsonl (every reply of every k-th step),
metrics.json, and the times apart in timings.csv and timings.json. With train.lora the policy's weights hold the
adapters merged in, and policy/adapter holds them as the peft package reads them. A killed run continues from its
last state in .state/train and ends in the same weights. Of several ranks the first alone writes and speaks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

import torch

from tuneloop import machine
from tuneloop.agents.asker import with_agent
from tuneloop.agents.function import agent_file
from tuneloop.artifacts import read_jsonl, write_csv, write_json, write_jsonl
from tuneloop.errors import UserError
from tuneloop.params import LoraParams, Params, load_params
from tuneloop.policies.adapters import merged_state
from tuneloop.policies.policy import Policy, load_policy, save_policy
from tuneloop.policies.presets import LoraTargets, require_trainable
from tuneloop.progress import Progress
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.engines import load_engine
from tuneloop.rollout.episodes import asker_for
from tuneloop.stage import stage
from tuneloop.tasks import load_episodes, load_task
from tuneloop.tasks.contract import Record
from tuneloop.training.batch import Group
from tuneloop.training.examples import load_examples
from tuneloop.training.launch import end_with_the_launcher, launch, launched
from tuneloop.training.lora import add_adapters, save_adapter, targets_of
from tuneloop.training.ranks import Ranks, ending_with_the_others, full, join
from tuneloop.training.state import StateFolder, state_key
from tuneloop.training.tables import Tables
from tuneloop.training.trainer import COMPUTE, Trainer

POLICY, BOARDS, OUT, STATE = Path("data/policy/model"), Path("data/boards"), Path("data/train"), Path(".state/train")
LAST = 20
"""Steps that rolled out over which the last reward is averaged."""


def main() -> int:
    if not launched() and (count := wanted_ranks()) > 1:
        return launch("stages.train", count)
    if launched():
        end_with_the_launcher()
    first = int(os.environ.get("RANK", 0)) == 0
    with stage("train") if first else silent_stage(), ending_with_the_others(), ExitStack() as opened:
        started = time.perf_counter()
        params = load_params()
        require_trainable(params.policy.source, params.policy.like)
        ranks = join()
        device = machine.prepare(params.machine.threads)
        policy = load_policy(POLICY, device)
        lora, targets = params.train.lora, targets_of(params.policy.source, params.policy.like)
        if lora.rank:
            add_adapters(policy.model, lora, targets, params.seed)
        engine = load_engine(policy, params.rollout, COMPUTE[params.train.dtype])
        task = load_task(params.task.name)
        episodes = load_episodes(task, params.task.mode, params.task.opponent, params.task.reward_at)
        asker = opened.enter_context(with_agent(asker_for(policy, engine, task, episodes), params.rollout))
        records, heldout = (read_jsonl(BOARDS / f"{name}.jsonl") for name in ("train", "heldout"))
        if params.train.extra_records:
            records += asker.task.extra_records()
        examples = examples_of(params, asker, records, heldout)
        trainer = Trainer(asker, engine, records, heldout, params.train, params.rollout, params.seed, ranks, examples)
        states = StateFolder(STATE, run_key(params))
        if (state := states.load()) is not None:
            trainer.restore(state)
            print(f"continuing after step {trainer.step} of {params.train.steps} ({states.folder})", flush=True)
        with Progress("train", params.train.steps, trainer.step) as progress:
            for row in trainer.run():
                shown = {"reward": row["reward_mean"], "length": row["length_all"], "loss": row.get("loss")}
                progress.advance(**{name: value for name, value in shown.items() if value is not None})
                if row["step"] % params.train.save_every == 0 and row["step"] < params.train.steps:
                    save_state(states, trainer, ranks)
        save_state(states, trainer, ranks)
        weights = None if ranks.alone and not lora.rank else full(policy.model.state_dict())
        ranks.leave()
        if ranks.first:
            save_trained(policy, weights, lora, targets)
            write_tables(trainer.tables)
            write_json(OUT / "timings.json", {"seconds": round(time.perf_counter() - started, 3)})
    return 0


@contextmanager
def silent_stage() -> Iterator[None]:
    """A rank that is not the first: what it prints is dropped."""
    with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stdout(nothing), stage("train"):
        yield


def wanted_ranks() -> int:
    """`machine.ranks`; 1 where the parameters are wrong, which the stage itself then says."""
    try:
        return load_params().machine.ranks
    except UserError:
        return 1


def examples_of(params: Params, asker: Asker, records: Sequence[Record], heldout: Sequence[Record]) -> Sequence[Group]:
    """What `train.examples` holds; nothing where it is null."""
    train = params.train
    if train.examples is None:
        return ()
    found = load_examples(train.examples, train.algorithm, asker, records, heldout, params.rollout.max_new_tokens)
    for note in found.notes:
        print(f"[train] {note}", flush=True)
    return found.groups


def save_state(states: StateFolder, trainer: Trainer, ranks: Ranks) -> None:
    """Save where the training is; the first rank alone writes."""
    state = trainer.state()  # of all ranks together
    if ranks.first:
        states.save(trainer.step, state)


def save_trained(
    policy: Policy, weights: dict[str, torch.Tensor] | None, lora: LoraParams, targets: LoraTargets
) -> None:
    """Write the trained policy. `weights`: those of the model as it was trained, where it is spread over ranks or
    has adapters; they are then put into the base policy, which is neither."""
    folder = OUT / "policy"
    if weights is None:
        save_policy(policy, folder)
        return
    plain = load_policy(POLICY)
    plain.model.load_state_dict(merged_state(policy.model, weights))
    save_policy(plain, folder)
    if lora.rank:
        save_adapter(weights, lora, targets, folder / "adapter")


def run_key(params: Params) -> str:
    """The key of everything the trained weights depend on."""
    values = params.model_dump(include={"seed", "task", "rollout", "train", "machine"})
    # How often a state is saved changes no result, the number of ranks none but by rounding.
    del values["train"]["save_every"], values["machine"]["ranks"]
    packages = ["torch", "transformers", "tokenizers", "numpy", *(["peft"] if params.train.lora.rank else [])]
    values["versions"] = {name: version(name) for name in packages}
    code = Path(__file__).parent.parent
    files = [POLICY, BOARDS / "train.jsonl", BOARDS / "heldout.jsonl", code / "tuneloop", Path(__file__)]
    if params.train.examples is not None:
        files.append(Path(params.train.examples))
    if params.rollout.agent is not None:
        files.append(agent_file(params.rollout.agent))
    return state_key(values, files)


def write_tables(tables: Tables) -> None:
    """The tables of a run, and its last steps in short."""
    write_csv(OUT / "history.csv", tables.history)
    write_csv(OUT / "evaluations.csv", tables.evaluations)
    write_jsonl(OUT / "replies.jsonl", tables.replies)
    write_csv(OUT / "timings.csv", tables.timings)
    # Steps on examples from a file do not all roll out.
    last = [row["reward_mean"] for row in tables.history if row["reward_mean"] is not None][-LAST:]
    metrics = {"steps": len(tables.history), "last_reward": fmean(last)}
    write_json(OUT / "metrics.json", metrics)


if __name__ == "__main__":
    sys.exit(main())
