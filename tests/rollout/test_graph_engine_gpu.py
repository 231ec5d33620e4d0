"""What only a GPU can show of its engine: kernels, captured graphs, half precision, memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from tuneloop import machine
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.prompt_tree import prompt_tree
from tuneloop.policies.scoring import reply_logprobs
from tuneloop.rollout import graph_ops
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.graph_engine import GraphEngine
from tuneloop.rollout.graph_ops import Rows, Shape
from tuneloop.rollout.torch_engine import TorchEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

VOCABULARY = 5000
"""More than one chunk of the sampling kernel, and no multiple of it."""
GREEDY = Sampling(24, greedy=True)
WAYS = [Sampling(24), Sampling(24, temperature=0.7), GREEDY, Sampling(24, 1.2, top_p=0.9, top_k=40)]


@pytest.fixture(autouse=True, scope="module")
def as_in_a_stage() -> Iterator[None]:
    """Repeatable algorithms asked for, as every stage does."""
    machine.prepare(2)
    yield
    torch.use_deterministic_algorithms(False)


def drawn(family: str, seed: int = 0) -> PreTrainedModel:
    """A random float32 model; attention is sharp enough, and tokens likely enough, for errors to show."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 288,
        "intermediate_size": 400,
        "num_hidden_layers": 4,
        "max_position_embeddings": 512,
        "initializer_range": 0.06,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=9, num_key_value_heads=3, head_dim=64))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=96))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.cuda().eval()


def prompts(groups: int, shared: int = 70, own: int = 9, seed: int = 1) -> list[list[int]]:
    """Of unequal lengths, from `shared` + 1 tokens on."""
    draw = torch.Generator().manual_seed(seed)
    prefix = torch.randint(3, VOCABULARY, (shared,), generator=draw).tolist()
    rest = torch.randint(3, VOCABULARY, (groups, own), generator=draw).tolist()
    return [[*prefix, 3 + g, *row[: g % own]] for g, row in enumerate(rest)]


def seeds(groups: int) -> list[list[int]]:
    """Groups of unequal size, none among them."""
    return [[100 * g + i for i in range((5 * g + 1) % 13)] for g in range(groups)]


def flat(groups: list[list[Reply]]) -> list[Reply]:
    return [reply for group in groups for reply in group]


def ids(groups: list[list[Reply]]) -> list[list[int]]:
    return [reply.ids for reply in flat(groups)]


def gaps(model: PreTrainedModel, asked: list[list[int]], groups: list[list[Reply]], temperature: float = 1) -> Tensor:
    """|Δ log p| of every reply token between the engine and a float32 forward pass."""
    found = []
    with torch.no_grad():
        for prompt, group in zip(asked, groups):
            if group:
                tree = prompt_tree([prompt], [[reply.ids for reply in group]], "cuda")
                exact = reply_logprobs(DenseDecoder(model), tree, temperature)[0].double().cpu()
                found.append((exact - torch.tensor([p for reply in group for p in reply.logprobs])).abs())
    return torch.cat(found)


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return drawn("llama")


@pytest.mark.parametrize("way", WAYS, ids=["whole", "colder", "greedy", "cut"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_captured_replies_are_those_of_the_same_passes_without_graphs(
    llama: PreTrainedModel, dtype: torch.dtype, way: Sampling
) -> None:
    captured, eager = (GraphEngine(llama, [7, 90], dtype, captured=c) for c in (True, False))
    asked, drawn_from = prompts(20), seeds(20)
    expected = eager.generate(asked, drawn_from, way)
    for _ in range(3):  # eagerly, captured, replayed
        assert captured.generate(asked, drawn_from, way) == expected
    assert any(captured.step.graphs.values()) and not any(eager.step.graphs.values())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_log_probabilities_are_near_those_of_a_float32_forward_pass(
    family: str, dtype: torch.dtype, limit: float
) -> None:
    model = drawn(family)
    # A hundred replies, seven hundred (rows then attend to the prefix together), and long ones.
    for groups, own, way in ((20, 9, WAYS[0]), (120, 9, WAYS[1]), (120, 9, Sampling(150))):
        asked = prompts(groups, own=own)
        replies = GraphEngine(model, [7, 90], dtype).generate(asked, seeds(groups), way)
        assert gaps(model, asked, replies, way.temperature).mean() < limit


# With 600 end tokens of 5000 most replies end early, and the others move to smaller and smaller graphs.
@pytest.mark.parametrize("ends", [[7, 90], list(range(100, 700))], ids=["few end", "most end"])
def test_float32_replies_are_those_of_the_torch_engine_on_the_same_device(
    llama: PreTrainedModel, ends: list[int]
) -> None:
    engine = GraphEngine(llama, ends)
    for way in WAYS:
        expected = TorchEngine(llama, ends).generate(prompts(20), seeds(20), way)
        for _ in range(3):
            pairs = list(zip(ids(engine.generate(prompts(20), seeds(20), way)), ids(expected), strict=True))
            # Products round otherwise in another order of sums: a draw that falls on the border between two tokens
            # (one in 120 replies was seen to) may go either way.
            assert sum(ours != theirs for ours, theirs in pairs) <= len(pairs) // 50


def test_new_weights_are_used_by_graphs_that_were_captured_before() -> None:
    model = drawn("llama", seed=3)
    engine, asked, drawn_from = GraphEngine(model, [7]), prompts(8), seeds(8)
    for _ in range(3):
        before = engine.generate(asked, drawn_from, GREEDY)
    graphs = {key: graph for key, graph in engine.step.graphs.items() if graph}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
    assert engine.generate(asked, drawn_from, GREEDY) == before  # nobody said so
    engine.weights_changed()
    after = engine.generate(asked, drawn_from, GREEDY)
    assert after == GraphEngine(model, [7]).generate(asked, drawn_from, GREEDY) != before
    assert graphs.items() <= engine.step.graphs.items()


def test_other_sizes_in_between_change_nothing(llama: PreTrainedModel) -> None:
    engine = GraphEngine(llama, [7], batch_replies=64)
    calls = [(3, 20, 5), (30, 70, 9), (1, 3, 2), (12, 300, 4), (3, 20, 5), (30, 70, 9)]
    for groups, shared, own in calls:
        asked, drawn_from = prompts(groups, shared, own), [[100 * g + i for i in range(4)] for g in range(groups)]
        expected = GraphEngine(llama, [7], batch_replies=64, captured=False).generate(asked, drawn_from, WAYS[0])
        assert engine.generate(asked, drawn_from, WAYS[0]) == expected


def test_memory_does_not_grow_from_call_to_call(llama: PreTrainedModel) -> None:
    engine = GraphEngine(llama, [7], torch.bfloat16)

    def call() -> None:
        for groups in (20, 5):
            engine.weights_changed()
            engine.generate(prompts(groups), seeds(groups), WAYS[0])

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= held[0] and torch.cuda.memory_reserved() <= held[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [Shape(3, 3, 64, 1e-5), Shape(2, 2, 32, 1e-6), Shape(2, 7, 96, 1e-6), Shape(1, 1, 16, 1e-6)]
)
def test_every_kernel_computes_what_plain_torch_does(
    shape: Shape, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuneloop.rollout import graph_kernels

    torch.manual_seed(0)
    K, H, D, n = shape.K, shape.R * shape.K, shape.D, 11
    # bfloat16 rounds at 2⁻⁹; the kernels round where plain torch does, attention once less.
    limit = 2e-6 if dtype == torch.float32 else 6e-3

    def random(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda", dtype=dtype)

    def near(found: Tensor, expected: Tensor) -> None:
        assert (found.double() - expected.double()).norm() < limit * expected.double().norm()

    x, weight = random(n, 200), random(200)
    near(graph_kernels.norm(x, weight, 1e-5), graph_ops.norm(x, weight, 1e-5))
    both = random(n, 400)
    near(graph_kernels.gate(both), graph_ops.gate(both))
    numbers = torch.arange(n, device="cuda")
    position = torch.tensor([0, 5, 63, 64, 69, 70, 75, 81, 85, 86, 140], device="cuda")
    rows = Rows(position, 70 + 10 * numbers, 0 * numbers + 80, 200 + 70 * numbers, torch.tensor([70], device="cuda"))
    angles = torch.randn(160, D // 2, device="cuda")
    rotary = torch.stack([angles.cos(), angles.sin()], dim=-1)
    joined = random(n, (H + 2 * K) * D)
    for qk_norm in (None, random(H + K, D)):
        pools = [(random(1000, K, D), random(1000, K, D))]
        pools.append(tuple(x.clone() for x in pools[0]))
        found, expected = (
            ops.place(joined, qk_norm, rotary, rows, *pool, shape)
            for ops, pool in zip((graph_kernels, graph_ops), pools)
        )
        for one, other in ((found, expected), *zip(*pools)):
            near(one, other)
        exact = graph_ops.attend(found.float(), rows, *(x.float() for x in pools[0]), shape)
        for many in (1, 1000):  # several rows a program, or one
            monkeypatch.setattr(graph_kernels, "MANY_ROWS", many)
            near(graph_kernels.attend(found, replace(rows, near=True), *pools[0], shape), exact)


@pytest.mark.parametrize("vocabulary", [100, 4096, 49_152, 151_936])
def test_the_sampling_kernel_draws_what_the_same_uniforms_draw_elsewhere(vocabulary: int) -> None:
    from tuneloop.rollout import graph_kernels

    torch.manual_seed(1)
    logits = 3 * torch.randn(300, vocabulary, device="cuda")
    logits[7, : vocabulary // 2] = float("-inf")  # whole chunks of impossible tokens among them
    u = torch.rand(300, device="cuda", dtype=torch.float64)
    u[7] = 0.0  # the first token that can come at all
    for way in (*WAYS, Sampling(1, temperature=2.5)):
        ids, logp = graph_kernels.draw(logits, way, u)
        expected, expected_logp = graph_ops.draw(logits.double(), way, u)
        # A uniform within rounding of a border between two tokens may fall on either side.
        assert (ids != expected).sum() <= 1
        assert (logp - expected_logp)[ids == expected].abs().max() < 1e-5
