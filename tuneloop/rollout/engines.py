"""Which engine `rollout.engine` names. What an engine needs is imported only where it is chosen."""

from __future__ import annotations

from tuneloop.params import RolloutParams
from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Engine
from tuneloop.rollout.torch_engine import TorchEngine


def load_engine(policy: Policy, params: RolloutParams) -> Engine:
    """The engine that samples from `policy`, with its weights as they stand."""
    return TorchEngine(policy.model, policy.end_ids)
