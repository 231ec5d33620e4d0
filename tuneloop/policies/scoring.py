"""Log-probabilities of reply tokens under a policy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tuneloop.policies.decoder import DenseDecoder, PromptTree

CHUNK_ELEMENTS = 1 << 24
"""Logits held at once (64 MB in float32): memory does not grow with vocabulary × batch."""


def reply_logprobs(decoder: DenseDecoder, tree: PromptTree, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy (nats) of every reply token, both [reply tokens] as packed in
    `tree`, under softmax(logits / temperature). Gradients flow to the model where it wants them."""
    hidden = decoder.forward(tree).index_select(0, tree.predictors)
    return token_logprobs(hidden, decoder.head, tree.reply_ids, temperature)


def token_logprobs(hidden: Tensor, head: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The same from hidden states [n, hidden], head [vocabulary, hidden] and ids [n].

    Logits are made a chunk of rows at a time and made again in the backward pass.
    """
    rows = max(1, CHUNK_ELEMENTS // head.shape[0])
    if len(ids) <= rows:
        return _logprobs(hidden, head, ids, temperature)
    parts = [
        checkpoint(_logprobs, h, head, i, temperature, use_reentrant=False)
        if torch.is_grad_enabled()
        else _logprobs(h, head, i, temperature)
        for h, i in zip(hidden.split(rows), ids.split(rows))
    ]
    return torch.cat([p for p, _ in parts]), torch.cat([e for _, e in parts])


def _logprobs(hidden: Tensor, head: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = hidden @ head.T
    # Half precision stops at the logits: sums of exponentials need float32.
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, ids[:, None])[:, 0], entropy
