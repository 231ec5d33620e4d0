"""What starting vLLM and handing weights to it need that can be tried without the package."""

from __future__ import annotations

import pytest
import torch

from tuneloop.rollout.vllm_engine import _any_algorithm
from tuneloop.rollout.vllm_weights import _without_tied


@pytest.mark.parametrize("head_first", [True, False])
def test_of_tied_weights_the_embedding_is_handed_over_because_vllm_passes_over_a_tied_head(head_first: bool) -> None:
    tied, own = torch.ones(4, 2), torch.ones(2)
    named = [("lm_head.weight", tied), ("model.embed_tokens.weight", tied), ("model.norm.weight", own)]
    found = dict(_without_tied(dict(named if head_first else reversed(named))))
    assert found.keys() == {"model.embed_tokens.weight", "model.norm.weight"}


def test_a_head_with_weights_of_its_own_is_handed_over() -> None:
    weights = {"lm_head.weight": torch.ones(4, 2), "model.embed_tokens.weight": torch.ones(4, 2)}
    assert dict(_without_tied(weights)).keys() == weights.keys()


@pytest.mark.parametrize("warn_only", [True, False])
def test_vllm_compiles_without_the_demand_for_repeatable_algorithms_which_holds_again_afterwards(
    warn_only: bool,
) -> None:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        with pytest.raises(ValueError), _any_algorithm():
            assert not torch.are_deterministic_algorithms_enabled()
            raise ValueError
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
