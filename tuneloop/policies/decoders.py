"""Which forward pass computes a model."""

from __future__ import annotations

from functools import cache

import torch

from tuneloop.errors import UserError
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.model_decoder import ModelDecoder


def load_decoder(
    model: torch.nn.Module, dtype: torch.dtype | None = None, checkpoint_layers: bool = False
) -> DenseDecoder | ModelDecoder:
    """The forward pass for `model`, over its own parameters: `DenseDecoder` where it computes this model, else
    `ModelDecoder`, which is announced on standard output. `dtype`, `checkpoint_layers`: as in both. Raises UserError
    for a model that neither computes."""
    try:
        return DenseDecoder(model, dtype, checkpoint_layers)
    except UserError as reason:
        decoder = ModelDecoder(model, dtype, checkpoint_layers)
        _announce(f"{reason}: transformers' own forward pass computes this one, each reply with its whole prompt")
        return decoder


@cache  # once a process: training makes several decoders of one model
def _announce(line: str) -> None:
    print(line, flush=True)
