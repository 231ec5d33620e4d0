"""A setting so small that a whole run takes seconds, shared by tests of training, evaluation and stages."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tuneloop.artifacts import write_jsonl
from tuneloop.params import Params, parse_params

# Before anything loads torch: waiting threads do not spin, nothing is looked up on a hub.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).parents[1]

TINY = {
    "seed": 5,
    "boards.count": 60,
    "boards.heldout_fraction": 0.2,
    "policy.source": "nano",
    "policy.nano.hidden_size": 32,
    "policy.nano.intermediate_size": 64,
    "policy.nano.layers": 2,
    "policy.nano.heads": 2,
    "policy.nano.kv_heads": 1,
    "policy.nano.vocabulary": 800,
    # Enough for replies to one board to differ in reward: without that no step would train anything.
    "policy.warm_start.updates": 120,
    "policy.warm_start.batch_size": 16,
    "policy.warm_start.lr": 2e-2,
    "rollout.max_new_tokens": 40,
    "rollout.temperature": 1.0,
    "rollout.thinking": True,
    "evaluate.samples": 2,
    "evaluate.games": 2,
    "train.algorithm": "gspo",
    "train.steps": 4,
    "train.boards_per_step": 4,
    "train.group_size": 4,
    "train.oversample": 1,
    "train.visit": "passes",
    "train.extra_records": False,
    "train.kl_coefficient": 0.0,
    "train.kl_until": None,
    "train.updates_per_step": 2,
    "train.epochs_per_step": 1,
    "train.lr": 1e-3,
    "train.lr_warmup": 2,
    "train.lr_final": 0.1,
    "train.clip_low": 0.05,
    "train.clip_high": 0.05,
    "train.entropy_bonus": 0.0,
    "train.weight_decay": 0.0,
    "train.micro_batch_replies": 512,
    "train.evaluate_every": 2,
    "train.keep_replies_every": 2,
    "train.save_every": 1,
    "train.engine_gap_limit": 1e-3,
    "train.dtype": "float32",
    "train.checkpoint_layers": False,
    "train.lora.rank": 0,
    "train.lora.alpha": 32,
    "compare.bootstrap": 200,
    "machine.threads": 1,
    "machine.ranks": 1,
}
"""By dotted key: what the tests rely on, whatever the project's own params.yaml says."""

NO_NETWORK = '''
"""Imported by Python at its start: every attempt to reach another machine fails."""
import socket


def refuse(*args, **kwargs):
    raise RuntimeError(f"the network was asked for: {args}")


socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
'''


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no process is left with a long one while the others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` the tests of the flows stay together too: they share one server of Prefect's."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrServer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/flows" if nodeid.startswith("tests/flows/") else super()._split_scope(nodeid)

    return ByFileOrServer(config, log)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def tiny_tree() -> Callable[..., dict[str, Any]]:
    """params.yaml as nested mappings with tiny numbers; `tiny_tree({"train.lr": 0.0})` changes more."""

    def tree(changes: Mapping[str, Any] = {}) -> dict[str, Any]:
        found = YAML(typ="safe").load((ROOT / "params.yaml").read_text(encoding="utf-8"))
        for key, value in (TINY | dict(changes)).items():
            *sections, name = key.split(".")
            section = found
            for part in sections:
                section = section[part]
            section[name] = value
        return found

    return tree


@pytest.fixture(scope="session")
def tiny_params(tiny_tree: Callable[..., dict[str, Any]]) -> Callable[..., Params]:
    """The same as typed values."""
    return lambda changes={}: parse_params(tiny_tree(changes), "tiny")


@pytest.fixture(scope="session")
def tiny_records(tiny_params: Callable[..., Params]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and held-out records, as the boards stage makes them. Read only."""
    from tuneloop.tasks import load_task
    from tuneloop.tasks.split import split

    task, boards = load_task("tictactoe"), tiny_params().boards
    return split(task, task.generate(boards.count, boards.seed), boards.heldout_fraction, boards.seed)


@pytest.fixture(scope="session")
def make_policy(
    tmp_path_factory: pytest.TempPathFactory, tiny_params: Callable[..., Params], tiny_records: tuple[list, list]
) -> Callable[..., Path]:
    """`make_policy(changes)`: the folder of a nano policy built and warm-started with the tiny params, changed."""
    from tuneloop import machine
    from tuneloop.policies.catalogue import build_policy
    from tuneloop.policies.policy import save_policy
    from tuneloop.tasks import load_task

    def make(changes: Mapping[str, Any] = {}) -> Path:
        params = tiny_params(changes)
        built = build_policy(
            params.policy,
            load_task("tictactoe"),
            tiny_records[0],
            thinking=params.rollout.thinking,
            max_new_tokens=params.rollout.max_new_tokens,
            seed=params.seed,
            device=machine.prepare(params.machine.threads),
        )
        folder = tmp_path_factory.mktemp("policy") / "model"
        save_policy(built.policy, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_policy(make_policy: Callable[..., Path]) -> Path:
    """The folder of a nano policy that writes every kind of reply. Read only."""
    return make_policy()


@pytest.fixture(scope="session")
def write_params(tiny_tree: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """`write_params(folder, changes)` writes the tiny params.yaml into `folder`."""

    def write(folder: Path, changes: Mapping[str, Any] = {}) -> None:
        with open(folder / "params.yaml", "w", encoding="utf-8") as file:
            YAML(typ="safe").dump(tiny_tree(changes), file)

    return write


@pytest.fixture
def workspace(tmp_path: Path, write_params: Callable[..., None], tiny_records: tuple, tiny_policy: Path) -> Path:
    """A folder in which `python -m stages.train` can start: params.yaml, records and base policy."""
    write_params(tmp_path)
    train, heldout = tiny_records
    for name, rows in (("boards", train + heldout), ("train", train), ("heldout", heldout)):
        write_jsonl(tmp_path / "data" / "boards" / f"{name}.jsonl", rows)
    shutil.copytree(tiny_policy, tmp_path / "data" / "policy" / "model")
    return tmp_path


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Variables for processes that run stages: this Python first, the project importable."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@pytest.fixture(scope="session")
def cut_off(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same without a network: whatever asks for another machine raises. No library is told to
    stay offline."""
    folder = tmp_path_factory.mktemp("no_network")
    (folder / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    kept = {name: value for name, value in environment.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    return kept | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
