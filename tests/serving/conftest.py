"""A server over a small policy that writes every kind of reply, and the client that people use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from serving.running import serve

from tuneloop.policies.policy import Policy, load_policy
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.tasks import load_task


@pytest.fixture(scope="session")
def policy(tiny_policy: Path) -> Policy:
    return load_policy(tiny_policy)


@pytest.fixture(scope="session")
def engine(policy: Policy) -> TorchEngine:
    """The engine alone: what the server must answer."""
    return TorchEngine(policy.model, policy.end_ids)


@pytest.fixture(scope="session")
def url(tiny_policy: Path) -> Iterator[str]:
    with serve(tiny_policy) as url:
        yield url


@pytest.fixture(scope="session")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def asked() -> dict[str, Any]:
    """A request about one board, as keyword arguments of `chat.completions.create`."""
    task = load_task("tictactoe")
    record = task.generate(1, 3)[0]
    return {"model": "nano", "messages": task.messages(record), "tools": task.tools, "max_tokens": 18}
