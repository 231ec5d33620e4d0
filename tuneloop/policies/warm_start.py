"""A short supervised warm start on a task's demonstrations.

Gives a freshly drawn policy the reply format. What the demonstrations teach is the task's matter
(`Task.demonstrations`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.lanes import TRAINED, add_gradients, lanes, split
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs


def warm_start(
    decoder: DenseDecoder,
    examples: Sequence[tuple[list[int], list[int]]],
    batch_size: int,
    lr: float,
    progress: Callable[[int, float], None] = lambda update, loss: None,
) -> list[float]:
    """One pass over `examples`, pairs of prompt ids and reply ids, in batches of `batch_size`, in
    the order given; AdamW, linear warm-up over a tenth of the updates, cosine decay to zero.

    Returns the loss (nats a reply token) of every update.
    """
    parameters = [p for p in decoder.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    batches = [examples[i : i + batch_size] for i in range(0, len(examples), batch_size)]
    rise = max(1, len(batches) // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min(1.0, (i + 1) / rise) * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * i / len(batches))).item()),
    )
    losses = []
    for update, batch in enumerate(batches, 1):
        tokens = sum(len(reply) for _, reply in batch)
        optimizer.zero_grad(set_to_none=True)
        parts = split(batch, lanes(decoder.model, len(batch), TRAINED))
        jobs = [partial(_loss, decoder, part, tokens) for part in parts]
        loss = sum(add_gradients(parameters, jobs))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss)
        progress(update, losses[-1])
    return losses


def _loss(
    decoder: DenseDecoder, part: Sequence[tuple[list[int], list[int]]], tokens: int
) -> list[tuple[Tensor, float]]:
    """One lane's part of a batch's loss, the mean over all `tokens` of the batch."""
    tree = prompt_tree([p for p, _ in part], [[r] for _, r in part], decoder.device)
    logp, _ = reply_logprobs(decoder, tree)
    loss = -logp.sum() / tokens
    return [(loss, loss.item())]
