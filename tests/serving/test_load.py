"""A small load of good, malformed and cancelled requests (bench/serve_load.py is the large one)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from serving.running import serve

from tuneloop.policies.policy import Policy
from tuneloop.rollout.torch_engine import TorchEngine


def test_under_load_nothing_is_lost_and_every_answer_is_the_engines_own(
    tiny_policy: Path, policy: Policy, engine: TorchEngine, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root))  # benchmarks are not installed with the library
    from bench.serve_load import TASK, expected, mixed

    records = TASK.generate(120, 7)
    truth = expected(policy, engine, records)
    with serve(tiny_policy) as url:
        counts = asyncio.run(mixed(url, records, truth, clients=24)).counts
    assert counts["right"] == 60
    assert counts["refused"] == 30
    assert counts["cancelled"] + counts["answered before it was cancelled"] == 30
