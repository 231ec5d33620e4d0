"""Training on a GPU: bfloat16 over float32 weights, checkpointed layers, and the repeatability that is left."""

from __future__ import annotations

import pytest
import torch
from example_batch import BATCH, update
from runs import Start, steps, weights
from sequence_truth import relative_error, tiny_model

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def test_an_updates_gradient_on_the_gpu_is_that_of_float64_within_the_types_rounding() -> None:
    truth = update(tiny_model(), "gspo")[1]
    model = tiny_model().float().cuda()
    exact = [g.cpu().double() for g in update(model, "gspo")[1]]
    assert relative_error(exact, truth) < 1e-4
    half = [g.cpu().double() for g in update(model, "gspo", dtype=torch.bfloat16)[1]]
    assert 0 < relative_error(half, truth) < 0.1


def test_a_large_batch_of_log_probabilities_is_that_of_the_cpu() -> None:
    groups = BATCH * 40
    tree = [[g.prompt for g in groups], [g.replies for g in groups]]
    with torch.no_grad():
        expected = reply_logprobs(DenseDecoder(tiny_model()), prompt_tree(*tree))[0]
        found = reply_logprobs(DenseDecoder(tiny_model().float().cuda()), prompt_tree(*tree, "cuda"))[0]
    assert (found.cpu() - expected).abs().max() < 1e-4


def test_checkpointed_layers_hold_less_memory_and_give_the_same_gradient() -> None:
    model = tiny_model().float().cuda()
    peaks, gradients = [], []
    for on in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradients.append(update(model, "gspo", BATCH * 40, most=10_000, checkpoint_layers=on)[1])
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert relative_error(gradients[1], gradients[0]) < 1e-4
    # The tiny model has two layers and a small vocabulary: a layer's inside is kept once instead of twice.
    assert peaks[1] < 0.75 * peaks[0]


def test_a_trainer_in_bfloat16_takes_its_steps_and_keeps_float32_weights(start: Start) -> None:
    options = {"train.dtype": "bfloat16", "train.old_logprobs": "trainer", "train.engine_gap_limit": 0.1}
    trainer = start(options | {"train.kl_coefficient": 0.1, "train.checkpoint_layers": True, "train.steps": 2})
    rows = steps(trainer)
    assert all(value.dtype == torch.float32 and value.is_cuda for value in weights(trainer).values())
    assert all(row["weights_changed"] > 0.5 for row in rows)
    # πold is the trainer's own: before the first update the ratio is 1 up to what batching rounds.
    assert all(abs(row["ratio_mean"] - 1) < 0.05 for row in rows)
