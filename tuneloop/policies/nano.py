"""`nano`: a Qwen3-shaped policy of about 1 M parameters, made here, nothing downloaded.

Its tokenizer is byte-level BPE trained on the task's own texts (any text can still be encoded), so
that a prompt takes a few dozen tokens; its weights are drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tuneloop.params import NanoParams

END, PAD = "<|im_end|>", "<|endoftext|>"
MARKERS = ("<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
PIECES = r" ?\d[A-Za-z.]?|\n?(?:(?! \d)[^\d\n])+|\n"
"""One piece is one digit with the space before it and the letter or dot after it (" 5" or " 5X"), so that
a number is one token wherever it stands and so is a labelled cell, or everything else up to the next
digit or line end: a phrase that the task repeats becomes a single token, and prompts and replies stay short."""


def nano_tokenizer(texts: Sequence[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary` tokens, trained on `texts`, with the ChatML template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(MARKERS) + 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[PAD, "<|im_start|>", END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(texts), trainer)
    # The markers of reasoning and calls are ordinary text for whoever decodes: not "special".
    tokenizer.add_tokens([m for m in MARKERS if m != "<|im_start|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    fast.chat_template = (Path(__file__).parent / "chatml.jinja").read_text(encoding="utf-8")
    return fast


def nano_model(params: NanoParams, vocabulary: int, end_id: int, pad_id: int, seed: int) -> Qwen3ForCausalLM:
    """A float32 model with weights drawn from `seed`; the global generator is left as it was."""
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=params.hidden_size,
        intermediate_size=params.intermediate_size,
        num_hidden_layers=params.layers,
        num_attention_heads=params.heads,
        num_key_value_heads=params.kv_heads,
        head_dim=params.hidden_size // params.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=end_id,
        pad_token_id=pad_id,
        bos_token_id=None,
        initializer_range=params.initializer_range,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).float()
