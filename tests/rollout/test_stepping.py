"""Token by token against whole batches: `TorchEngine.generate` is the truth, which the trainer and transformers hold
(test_torch_engine.py)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from policies.tiny_models import FAMILIES, VOCABULARY, drawn, qwen3
from transformers import PreTrainedModel

from tuneloop.rollout import prefixes, stepping
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.stepping import TorchStepping
from tuneloop.rollout.torch_engine import TorchEngine

ENDS = [2, 7]
Asked = tuple[list[int], list[int], Sampling]

draw = random.Random(3)
SHARED = [draw.randrange(VOCABULARY) for _ in range(40)]
SETTINGS = [
    Sampling(12),
    Sampling(5, temperature=0.6, top_p=0.8),
    Sampling(9, greedy=True),
    Sampling(20, top_k=5),
    Sampling(1),
    Sampling(12),
]


def requests(count: int) -> list[Asked]:
    """Prompts of 1 to 210 tokens, most with a common beginning; one to four seeds; all settings."""
    found = []
    for i in range(count):
        begin = SHARED[: draw.choice([0, 17, 33, 40])]
        own = [draw.randrange(VOCABULARY) for _ in range(draw.choice([1, 2, 8, 30, 170]))]
        found.append((begin + own, [100 * i + k for k in range(draw.choice([1, 1, 4]))], SETTINGS[i % len(SETTINGS)]))
    return found


def run(engine: TorchStepping, asked: Sequence[Asked], at_once: int) -> list[list[Reply]]:
    """All replies, with `at_once` requests in flight: the next one enters when one has left."""
    todo, open_ = list(enumerate(asked)), {}
    found: list[list[list]] = [[[[], [], None] for _ in seeds] for _, seeds, _ in asked]
    while todo or open_:
        while todo and len(open_) < at_once:
            i, one = todo.pop(0)
            open_[engine.admit(*one)] = [i, len(one[1])]
        for token in engine.step():
            entry = open_[token.ticket]
            reply = found[entry[0]][token.index]
            reply[0].append(token.token)
            reply[1].append(token.logprob)
            reply[2] = token.finish_reason
            entry[1] -= token.finish_reason is not None
        open_ = {ticket: entry for ticket, entry in open_.items() if entry[1]}
    return [[Reply(*reply) for reply in group] for group in found]


def same(found: list[list[Reply]], expected: list[list[Reply]], gap: float = 1e-9) -> bool:
    pairs = [(a, b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True)]
    return all(
        a.ids == b.ids and a.finish_reason == b.finish_reason and a.logprobs == pytest.approx(b.logprobs, abs=gap)
        for a, b in pairs
    )


def alone(model: PreTrainedModel, asked: Sequence[Asked]) -> list[list[Reply]]:
    engine = TorchEngine(model, ENDS)
    return [engine.generate([prompt], [seeds], sampling)[0] for prompt, seeds, sampling in asked]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return drawn(qwen3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 5e-5), (torch.float64, 1e-9)])
def test_replies_are_those_of_whole_batches(family: str, dtype: torch.dtype, gap: float) -> None:
    model, asked = drawn(FAMILIES[family], dtype=dtype), requests(12)
    assert same(run(TorchEngine(model, ENDS).stepping(), asked, 5), alone(model, asked), gap)


@pytest.mark.parametrize("at_once", [1, 24])
@pytest.mark.parametrize("prompt_tokens", [7, 256])
def test_neither_company_nor_the_pieces_of_a_prompt_change_a_reply(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, at_once: int, prompt_tokens: int
) -> None:
    monkeypatch.setattr(stepping, "PROMPT_TOKENS", prompt_tokens)
    asked = requests(24)
    assert same(run(TorchEngine(model, ENDS).stepping(), asked, at_once), alone(model, asked))


def test_cancelled_requests_leave_and_the_others_go_on_as_if_they_had_never_been(model: PreTrainedModel) -> None:
    asked = requests(30)
    engine = TorchEngine(model, []).stepping()
    tickets = [engine.admit(*one) for one in asked]
    replies: dict[int, list[list[int]]] = {t: [[] for _ in one[1]] for t, one in zip(tickets, asked)}
    for round_ in range(40):
        for token in engine.step():
            assert token.ticket not in tickets[: 5 * round_ : 2]
            replies[token.ticket][token.index].append(token.token)
        for ticket in tickets[5 * round_ : 5 * (round_ + 1)][round_ % 2 :: 2]:
            engine.cancel(ticket)
            replies.pop(ticket, None)
            tickets[tickets.index(ticket)] = -1
    left = [i for i, ticket in enumerate(tickets) if ticket >= 0]
    expected = TorchEngine(model, [])
    assert len(left) == 15
    for i in left:
        (group,) = expected.generate([asked[i][0]], [asked[i][1]], asked[i][2])
        assert replies[tickets[i]] == [reply.ids for reply in group]
    assert engine.step() == []


def test_a_long_prompt_neither_stops_those_that_write_nor_is_passed_over_for_new_ones(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "PROMPT_TOKENS", 20)
    engine = TorchEngine(model, []).stepping()
    writing = engine.admit([1, 2], [0], Sampling(60))
    engine.step()
    long = engine.admit([draw.randrange(VOCABULARY) for _ in range(100)], [0], Sampling(60))
    heard = []
    for i in range(12):
        # As many new tokens as a step takes, every time.
        engine.admit([i] * 20, [0], Sampling(1))
        heard.append({one.ticket for one in engine.step()})
    assert all(writing in tickets for tickets in heard)
    # 100 tokens at 20 a step: its first reply token comes with the fifth, and with the first of the others the next.
    assert [long in tickets for tickets in heard] == 4 * [False] + 8 * [True]
    assert [len(tickets) for tickets in heard] == 4 * [1] + [2] + 7 * [3]


def test_what_finishes_frees_its_places(model: PreTrainedModel) -> None:
    engine = TorchStepping(TorchEngine(model, []).decoder, [], lambda: 0, places=8)
    engine.admit([1, 2, 3], [0, 1, 2, 3, 4, 5], Sampling(2))
    assert (engine.fits(5, 2), engine.fits(5, 3)) == (True, False)
    engine.step()
    engine.step()
    assert engine.fits(5, 8)


def test_what_cannot_be_computed_is_refused_and_nothing_has_begun(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, ENDS).stepping()
    for prompt, seeds in (([], [1]), ([1], []), ([VOCABULARY], [1]), ([-1], [1])):
        with pytest.raises(ValueError):
            engine.admit(prompt, seeds, Sampling(3))
    assert engine.step() == []


def tokens_of_a_prompt(engine: TorchStepping, prompt: list[int]) -> int:
    """How many tokens of it are computed."""
    ticket = engine.admit(prompt, [1], Sampling(1))
    with torch.inference_mode():
        (one,) = engine._passes()
    engine.step()
    engine.cancel(ticket)
    return len(one.ids)


def test_a_common_beginning_is_computed_twice_and_then_kept_until_the_weights_change(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, ENDS)
    steps = engine.stepping()
    prompts = [[*SHARED, i, i + 1] for i in range(3)]
    # 40 shared tokens are two blocks of 16 and a rest that is computed with each prompt's own two.
    assert prefixes.BLOCK == 16
    assert [tokens_of_a_prompt(steps, prompt) for prompt in prompts] == [42, 42, 10]
    engine.weights_changed()
    assert [tokens_of_a_prompt(steps, prompt) for prompt in prompts] == [42, 42, 10]


def test_of_prompts_that_come_together_all_but_the_first_two_find_the_beginning_kept(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "PROMPT_TOKENS", 42)
    engine = TorchEngine(model, ENDS).stepping()
    for i in range(6):
        engine.admit([*SHARED, i, i + 1], [0], Sampling(1))
    # Two steps of one prompt each, then four prompts of 10 tokens in one.
    assert [len(engine.step()) for _ in range(4)] == [1, 1, 4, 0]


def test_the_next_request_is_computed_with_weights_that_changed_in_place() -> None:
    changing = drawn(qwen3)
    engine, asked = TorchEngine(changing, ENDS), requests(6)
    steps = engine.stepping()
    before = run(steps, asked, 6)
    steps.admit(*asked[0])
    assert steps.current()
    with torch.no_grad():
        for parameter in changing.parameters():
            parameter.mul_(1.1)
    engine.weights_changed()
    assert not steps.current()
    steps.clear()
    after = run(steps, asked, 6)
    assert same(after, alone(changing, asked))
    assert before != after


def test_the_least_used_beginning_leaves_first() -> None:
    kept = prefixes.Prefixes(limit=48)
    a, b, c = ([i] * 16 for i in range(3))
    one = torch.zeros(1, 1, 16, 1)
    for begin in (a, b, c):
        kept.keep(begin, (one, one))
    assert kept.longest([*a, 9]) is not None
    kept.keep([5] * 16, (one, one))
    assert kept.longest([*b, 9]) is None
    assert kept.longest([*a, 9]) is not None
    # A prompt needs a token of its own: its last one predicts the reply.
    assert kept.longest(a) is None
