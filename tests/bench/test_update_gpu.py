"""The benchmark of updates: its count of operations, and that it runs where there is no GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs


@pytest.fixture
def update_gpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """From the benchmarks' package, which is not installed with the library."""
    monkeypatch.syspath_prepend(str(root))
    import bench.update_gpu

    return bench.update_gpu


def test_the_operations_are_those_that_torch_counts(update_gpu: ModuleType) -> None:
    model = update_gpu.random_model("nano", 2, 2, seed=0)
    prompts = update_gpu.random_prompts(*update_gpu.PROMPTS["nano"], 3, 1000)
    tree = prompt_tree(prompts, [[[5, 6, 7, 8], [9, 10]]] * 3)
    decoder = DenseDecoder(model)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        reply_logprobs(decoder, tree)
    products = sum(n for name, n in counter.get_flop_counts()["Global"].items() if "mm" in str(name))
    # Attention apart: torch counts masked places too. Of the weights, those of norms are in no product.
    attention = 4 * decoder.heads * decoder.head_width * 3 * sum(p + 1 for p in tree.positions.tolist())
    assert update_gpu.forward_flops(decoder, tree) - attention == pytest.approx(products, rel=0.01)


def test_it_prints_seconds_tokens_and_share(
    update_gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    sizes = "--shape nano --boards 2 --replies 2 --new-tokens 4 --rounds 1 --dtype float32"
    monkeypatch.setattr(sys, "argv", ["update_gpu", *sizes.split()])
    assert update_gpu.main() == 0
    said = capsys.readouterr().out
    assert "2 x 2 replies of 4 tokens, 2 updates" in said
    for what in ("updates", "log p"):
        (line,) = [line for line in said.splitlines() if line.startswith(what)]
        seconds, rate = float(line.split(" s")[0].split()[-1]), line.split(" s")[1]
        assert seconds > 0 and "tokens/s" in rate
