"""The forward pass of any causal language model of transformers, for architectures that `DenseDecoder` does
not compute.

Every reply becomes a row, prompt and reply, padded on the right, and goes through the model's own forward
pass: whatever the architecture, but a prompt is computed once a reply instead of once a group.

Shape suffixes: T packed tokens · N rows · W longest row.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from tuneloop.errors import UserError
from tuneloop.policies.prompt_tree import PromptTree, Ragged, prompt_tree

LOUD = 100.0
"""A soft cap bends logits of this size, while it leaves the small ones of an untrained model as they are."""


class ModelDecoder:
    """The interface of `DenseDecoder` as training uses it, over the model's own parameters."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None = None, checkpoint_layers: bool = False):
        """`dtype`: what matrix products are computed in (torch's autocast); None: the parameters' own type.
        `checkpoint_layers`: compute every layer a second time in the backward pass instead of keeping its inside.

        Holds itself against the model's own logits once, on a few tokens. Raises UserError where they differ:
        for a model that scales, caps or shifts its logits after the output head, or that computes padded rows
        otherwise than single ones; also for one that cannot be checkpointed."""
        if model.get_output_embeddings() is None or model.base_model is model:
            raise UserError(f"policy: {model.config.model_type!r} is no language model with an output head")
        self.model, self.dtype = model, dtype
        self._layers: list[torch.nn.Module] = []
        if checkpoint_layers:
            self._layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
            if not self._layers:
                raise UserError(
                    f"train.checkpoint_layers: {model.config.model_type!r} models do not support it; set it to false"
                )
            # The second is the first's name before transformers 5.24.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        self._require_own_logits()

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def head(self) -> Tensor:
        """[vocabulary, hidden]"""
        return self.model.get_output_embeddings().weight

    def forward(self, tree: PromptTree) -> Tensor:
        """What the head is applied to, [T, hidden] as packed in `tree`, with gradient. A prompt's hidden
        states are those of its first row; the others' are equal, and reach the loss through their replies.
        Raises UserError for a model that is spread over several ranks."""
        require_one_rank(self.model)
        rows = Rows.of(tree)
        given = {"attention_mask": rows.mask.long(), "position_ids": tree.positions[rows.places]}
        taken = {name: value for name, value in given.items() if accepts(self.model.base_model, name)}
        with self._as_computed():
            out = self.model.base_model(input_ids=tree.ids[rows.places], use_cache=False, **taken)
        hidden = out.last_hidden_state.flatten(0, 1).index_select(0, rows.first)
        return hidden if self.dtype is None else hidden.to(self.dtype)

    @contextmanager
    def _as_computed(self) -> Iterator[None]:
        # transformers checkpoints in training mode only; the layers alone are put into it, not what is inside
        # them: dropout stays off.
        for layer in self._layers:
            layer.training = torch.is_grad_enabled()
        try:
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
                yield
        finally:
            for layer in self._layers:
                layer.training = False

    @torch.no_grad()
    def _require_own_logits(self) -> None:
        ids = [i % self.head.shape[0] for i in range(1, 13)]
        # Rows of different length, so that one is padded: six tokens, and three of them fed after the prompt.
        cases = [(ids[:4], ids[4:7]), (ids[7:9], ids[9:10])]
        tree = prompt_tree([p for p, _ in cases], [[r] for _, r in cases], self.device)
        hidden = self.forward(tree)[tree.predictors]
        expected = hidden @ self.head.to(hidden.dtype).T
        for factor in (1.0, LOUD / max(expected.abs().max().item(), 1e-6)):
            own = torch.cat([self._own_logits([*p, *r], factor)[len(p) - 1 : -1] for p, r in cases])
            if not close(own, factor * expected):
                gap = (own - factor * expected).abs().max().item()
                raise UserError(
                    f"policy: the logits of this {self.model.config.model_type!r} model are not its output head times "
                    f"its last hidden states (they differ by up to {gap:.3g}, logits by up to "
                    f"{own.abs().max().item():.3g}); it scales, caps or shifts them, or computes padded rows "
                    "otherwise: training would use other probabilities than the model has; choose another model"
                )

    def _own_logits(self, ids: list[int], factor: float) -> Tensor:
        """[tokens, vocabulary] as the whole model gives them for one sequence, its last hidden states
        multiplied by `factor` on their way to the head."""

        def scaled(_module: torch.nn.Module, _inputs: object, out: dict[str, Tensor]) -> dict[str, Tensor]:
            out["last_hidden_state"] = out["last_hidden_state"] * factor
            return out

        hook = self.model.base_model.register_forward_hook(scaled)
        try:
            with self._as_computed():
                return self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0]
        finally:
            hook.remove()


@dataclass(frozen=True)
class Rows:
    """A tree's sequences one a row, padded on the right: every reply with tokens to compute on behind its
    prompt, and the prompt alone where a group has none."""

    places: Tensor
    """[N, W] packed place of each slot's token; behind a row's end 0."""
    mask: Tensor
    """[N, W] True on tokens."""
    first: Tensor
    """[T] the slot, counted through all rows, in which each packed token stands first."""

    @staticmethod
    def of(tree: PromptTree) -> Rows:
        suffix, fed = tree.suffix.lengths.tolist(), tree.fed.lengths.tolist()
        suffixes = _runs(tree.prefix, suffix)
        replies = _runs(tree.prompt_tokens, fed)
        rows: list[list[int]] = []
        for b, own in enumerate(suffixes):
            prompt = [*range(tree.prefix), *own]
            group = replies[b * tree.group_size : (b + 1) * tree.group_size]
            rows += [[*prompt, *reply] for reply in group if reply] or [prompt]
        packed = list(itertools.chain(*rows))
        ragged = Ragged.of([len(row) for row in rows], tree.ids.device)
        places = torch.tensor(packed, device=tree.ids.device)
        _, first = np.unique(packed, return_index=True)
        return Rows(
            ragged.pad(places[:, None])[..., 0], ragged.mask(), ragged.flat[torch.from_numpy(first).to(places.device)]
        )


def _runs(start: int, lengths: list[int]) -> list[range]:
    """Consecutive runs of these lengths."""
    ends = list(itertools.accumulate(lengths, initial=start))
    return [range(a, b) for a, b in itertools.pairwise(ends)]


def require_one_rank(model: torch.nn.Module) -> None:
    """UserError for a model under FSDP2: with the model's own forward pass a rank would wait for the others in every
    layer, and they do not compute equally often."""
    if hasattr(model, "unshard"):
        raise UserError(
            f"machine.ranks: models of type {model.config.model_type!r} can be trained by one rank only; set it to 1"
        )


def accepts(module: torch.nn.Module, name: str) -> bool:
    """Whether the module's forward pass names this argument: some know no positions."""
    return name in inspect.signature(module.forward).parameters


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two computations of the same logits agree but for rounding: to the square root of the
    type's precision (of float32's at least, in which many models compute parts)."""
    limit = max(torch.finfo(t.dtype).eps for t in (found, expected, torch.empty(0))) ** 0.5
    return bool((found - expected).abs().max() <= limit * expected.abs().max())
