"""A server for tests: a policy's folder behind an address on this machine, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuneloop.policies.policy import load_policy
from tuneloop.rollout.contract import Engine
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.serving.server import running, served


@contextmanager
def serve(folder: Path, engine: Engine | None = None, **options: Any) -> Iterator[str]:
    """The base URL (`http://127.0.0.1:PORT/v1`) of a server for the policy in `folder`; the model's id is the card's
    source ("nano"). `engine`: instead of the torch engine; `options`: as `tuneloop.serving.server.served` takes."""
    policy = load_policy(folder)
    with (
        served(policy, engine or TorchEngine(policy.model, policy.end_ids), **options) as app,
        running(app) as url,
    ):
        yield url
