"""What every rank of the tests runs: some training runs, one after another; the first rank keeps what came out.

    torchrun --nproc-per-node 2 tests/training/ranks_script.py FOLDER

FOLDER holds setting.pt: the policy's folder, the records, the parameters of every run by name, which runs spread the
model layer by layer, as a large one, and from which states some go on. Results go to FOLDER/NAME.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from tuneloop import machine
from tuneloop.params import Params, parse_params
from tuneloop.policies.policy import load_policy
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.tasks import load_task
from tuneloop.training import ranks as ranks_module
from tuneloop.training import trainer as trainer_module
from tuneloop.training.lora import add_adapters, targets_of
from tuneloop.training.ranks import ALONE, LARGE, Ranks, full, join
from tuneloop.training.trainer import Trainer


def trainer_of(policy: Path, records: tuple[list, list], params: Params, ranks: Ranks = ALONE) -> Trainer:
    loaded = load_policy(policy, machine.prepare(params.machine.threads))
    if params.train.lora.rank:
        add_adapters(loaded.model, params.train.lora, targets_of("nano"), params.seed)
    engine = TorchEngine(loaded.model, loaded.end_ids)
    asker = Asker(loaded, engine, load_task("tictactoe"))
    return Trainer(asker, engine, *records, params.train, params.rollout, params.seed, ranks)


def results(trainer: Trainer) -> dict[str, Any]:
    """Take the trainer's steps; its tables, the gradient of its first update, its state after the first step and
    after the last."""
    found: dict[str, Any] = {}
    hand_over = trainer_module.hand_over_gradients

    def spy(parameters: list[torch.Tensor], parts: list[torch.Tensor]) -> None:
        found.setdefault("gradient", [full(p.grad).cpu().clone() for p in parameters])
        hand_over(parameters, parts)

    trainer_module.hand_over_gradients = spy
    try:
        for row in trainer.run():
            if row["step"] == 1:
                found["after_one"] = detached(trainer.state())
    finally:
        trainer_module.hand_over_gradients = hand_over
    return found | {"tables": vars(trainer.tables), "end": detached(trainer.state())}


def detached(tree: Any) -> Any:
    """The same with copies of the tensors, which training goes on to change."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().clone()
    if isinstance(tree, dict):
        return {key: detached(value) for key, value in tree.items()}
    return [detached(value) for value in tree] if isinstance(tree, list | tuple) else tree


def main() -> None:
    folder = Path(sys.argv[1])
    setting = torch.load(folder / "setting.pt", weights_only=True)
    ranks = join()
    for name, tree in setting["runs"].items():
        ranks_module.LARGE = 0 if name in setting["by_layer"] else LARGE
        trainer = trainer_of(Path(setting["policy"]), setting["records"], parse_params(tree, name), ranks)
        if name in setting["from"]:
            trainer.restore(torch.load(folder / setting["from"][name], weights_only=True))
        found = results(trainer)
        if ranks.first:
            torch.save(found, folder / f"{name}.pt")
    ranks.leave()


if __name__ == "__main__":
    main()
