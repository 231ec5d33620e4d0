"""Computing every layer a second time in the backward pass: the same gradient, less memory."""

from __future__ import annotations

import torch
from example_batch import BATCH, update
from runs import Start, same, steps, weights
from sequence_truth import tiny_model

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs


def kept_bytes(decoder: DenseDecoder) -> int:
    """Bytes of the tensors that one forward pass keeps for its backward pass, each storage once."""
    tree = prompt_tree([g.prompt for g in BATCH], [g.replies for g in BATCH])
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logp, _ = reply_logprobs(decoder, tree)
    assert logp.requires_grad
    parameters = {p.untyped_storage().data_ptr() for p in decoder.model.parameters()}
    return sum(size for place, size in kept.items() if place not in parameters)


def test_the_gradient_is_the_plain_one_bit_for_bit() -> None:
    model = tiny_model()
    log, plain = update(model, "gspo")
    again, checkpointed = update(model, "gspo", checkpoint_layers=True)
    assert same(plain, checkpointed)
    assert same(log.ratio, again.ratio)


def test_the_same_in_bfloat16() -> None:
    model = tiny_model().float()
    plain = update(model, "gspo", dtype=torch.bfloat16)[1]
    assert same(plain, update(model, "gspo", dtype=torch.bfloat16, checkpoint_layers=True)[1])


def test_less_than_a_third_is_kept_for_the_backward_pass() -> None:
    model = tiny_model()
    plain, checkpointed = (kept_bytes(DenseDecoder(model, None, on)) for on in (False, True))
    assert checkpointed < plain / 3


def test_two_steps_of_a_trainer_end_in_the_same_weights(start: Start) -> None:
    plain, checkpointed = (start({"train.steps": 2, "train.checkpoint_layers": on}) for on in (False, True))
    assert all(row["weights_changed"] > 0 for row in steps(plain))
    steps(checkpointed)
    assert same(weights(plain), weights(checkpointed))
