"""Which engine `rollout.engine` names. What an engine needs is imported only where it is chosen."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from tuneloop.errors import UserError
from tuneloop.params import RolloutParams
from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Engine


def load_engine(policy: Policy, params: RolloutParams, dtype: torch.dtype | None = None) -> Engine:
    """The engine that samples from `policy`, with its weights as they stand. `dtype`: what the transformers engine
    computes in, and the torch engine on a GPU (None: the policy's own type, float32). Raises UserError where an
    engine does not compute this model, or where what it needs is not installed."""
    if params.engine == "transformers":
        from tuneloop.rollout.transformers_engine import TransformersEngine

        return TransformersEngine(policy.model, policy.end_ids, dtype)
    if params.engine == "vllm":
        if find_spec("vllm") is None:
            raise UserError(
                "rollout.engine=vllm: the package vllm is not installed; install it with pip install -e '.[vllm]', or "
                "set rollout.engine to torch or transformers"
            )
        from tuneloop.rollout.vllm_engine import VllmEngine

        return VllmEngine(policy, params)
    return _torch_engine(policy, dtype)


def _torch_engine(policy: Policy, dtype: torch.dtype | None) -> Engine:
    try:
        if policy.model.device.type == "cuda":
            from tuneloop.rollout.graph_engine import GraphEngine

            return GraphEngine(policy.model, policy.end_ids, dtype)
        from tuneloop.rollout.torch_engine import TorchEngine

        return TorchEngine(policy.model, policy.end_ids)
    except UserError as reason:
        raise UserError(f"rollout.engine=torch: {reason}; set rollout.engine to transformers or vllm") from None
