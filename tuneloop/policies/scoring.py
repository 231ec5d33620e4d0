"""Log-probabilities of reply tokens under a policy."""

from __future__ import annotations

from torch import Tensor

from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.kernels import token_logprobs
from tuneloop.policies.prompt_tree import PromptTree
from tuneloop.policies.within import within


def reply_logprobs(decoder: DenseDecoder, tree: PromptTree, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy (nats) of every reply token, both [reply tokens] as packed in
    `tree`, under softmax(logits / temperature). Gradients flow to the model where it wants them."""
    return within(decoder.model, _reply_logprobs, decoder, tree, temperature)


def _reply_logprobs(decoder: DenseDecoder, tree: PromptTree, temperature: float) -> tuple[Tensor, Tensor]:
    hidden = decoder.forward(tree).index_select(0, tree.predictors)
    return token_logprobs(hidden, decoder.head, tree.reply_ids, temperature)
