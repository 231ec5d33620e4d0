"""`tuneloop serve`: a policy's folder behind an OpenAI-compatible address."""

from __future__ import annotations

import argparse
import os

from tuneloop import machine
from tuneloop.errors import UserError
from tuneloop.policies.policy import Policy, load_policy
from tuneloop.rollout.contract import Engine
from tuneloop.serving.server import policy_folder, require_key, run, served


def run_serve(options: argparse.Namespace) -> int:
    """Serves until interrupted. Raises UserError before anything is loaded where the address wants a key."""
    require_key(options.host, options.key)
    for flag, value in (("threads", options.threads), ("queue", options.queue), ("max-tokens", options.max_tokens)):
        if value is not None and value < 1:
            raise UserError(f"--{flag} {value}: must be at least 1")
    folder = policy_folder(options.policy)
    policy = load_policy(folder, machine.prepare(options.threads or os.cpu_count() or 1))
    engine = _engine(policy, options.engine)
    names = {"name": options.name, "key": options.key}
    with served(policy, engine, capacity=options.queue, max_tokens=options.max_tokens, **names) as app:
        run(app, options.host, options.port)
    return 0


def _engine(policy: Policy, name: str) -> Engine:
    if name == "transformers":
        from tuneloop.rollout.transformers_engine import TransformersEngine

        return TransformersEngine(policy.model, policy.end_ids)
    try:
        if policy.model.device.type == "cuda":
            from tuneloop.rollout.graph_engine import GraphEngine

            return GraphEngine(policy.model, policy.end_ids)
        from tuneloop.rollout.torch_engine import TorchEngine

        return TorchEngine(policy.model, policy.end_ids)
    except UserError as reason:
        raise UserError(f"--engine torch: {reason}; serve it with --engine transformers") from None
