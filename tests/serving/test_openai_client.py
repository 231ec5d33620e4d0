"""The official client, unchanged, against the server; what the engine alone gives is the truth."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.toolcalls import ToolCall, load_dialect, read_reply

TOKENS = {"tuneloop": {"tokens": True}}
SEEDS = range(24)
"""Enough for the policy to write valid calls, broken ones, prose and replies that the limit cuts."""


@pytest.fixture(scope="module")
def truth(policy: Policy, engine: TorchEngine, asked: dict[str, Any]) -> dict[int, Reply]:
    """By seed: the engine's own reply."""
    prompt = policy.prompt_ids(asked["messages"], asked["tools"])
    (replies,) = engine.generate([prompt], [list(SEEDS)], Sampling(asked["max_tokens"]))
    return dict(zip(SEEDS, replies))


@pytest.fixture(scope="module")
def valid_seed(policy: Policy, truth: dict[int, Reply], asked: dict[str, Any]) -> int:
    """A seed whose reply is a valid call that ends by itself."""

    def is_call(reply: Reply) -> bool:
        reading = read_reply(policy.decode(reply.ids), load_dialect("hermes"), asked["tools"], policy.card.reasoning)
        return reply.finish_reason == "stop" and isinstance(reading, ToolCall)

    return next(seed for seed, reply in truth.items() if is_call(reply))


def test_the_model_is_listed_under_its_name(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["nano"]
    assert client.models.retrieve("nano").id == "nano"


def test_every_seed_gives_the_engines_own_tokens_read_by_the_strict_reader(
    client: OpenAI, policy: Policy, truth: dict[int, Reply], asked: dict[str, Any]
) -> None:
    seen = set()
    for seed, expected in truth.items():
        answer = client.chat.completions.create(**asked, seed=seed, extra_body=TOKENS)
        (choice,) = answer.choices
        assert answer.tuneloop["prompt_token_ids"] == policy.prompt_ids(asked["messages"], asked["tools"])
        assert choice.tuneloop["token_ids"] == expected.ids
        assert choice.tuneloop["logprobs"] == pytest.approx(expected.logprobs, abs=1e-4)
        assert answer.usage.completion_tokens == len(expected.ids)
        text = policy.decode(expected.ids)
        reading = read_reply(text, load_dialect("hermes"), asked["tools"], policy.card.reasoning)
        if isinstance(reading, ToolCall):
            (call,) = choice.message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == (reading.name, reading.arguments)
            assert choice.finish_reason == ("tool_calls" if expected.finish_reason == "stop" else "length")
        else:
            assert choice.message.tool_calls is None
            assert choice.finish_reason == expected.finish_reason
            assert choice.tuneloop["fault"]["name"] == reading.name
        seen.add(choice.finish_reason)
    assert seen == {"tool_calls", "stop", "length"}


def test_n_choices_repeat_with_their_seed_and_the_first_is_the_seeds_own(
    client: OpenAI, truth: dict[int, Reply], asked: dict[str, Any]
) -> None:
    first, again = (client.chat.completions.create(**asked, n=4, seed=3, extra_body=TOKENS) for _ in range(2))
    ids = [choice.tuneloop["token_ids"] for choice in first.choices]
    assert ids == [choice.tuneloop["token_ids"] for choice in again.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert ids[0] == truth[3].ids
    assert len(set(map(tuple, ids))) > 1


def test_temperature_zero_is_greedy(client: OpenAI, policy: Policy, engine: TorchEngine, asked: dict[str, Any]) -> None:
    prompt = policy.prompt_ids(asked["messages"], asked["tools"])
    ((expected,),) = engine.generate([prompt], [[0]], Sampling(asked["max_tokens"], greedy=True))
    answer = client.chat.completions.create(**asked, temperature=0, extra_body=TOKENS)
    assert answer.choices[0].tuneloop["token_ids"] == expected.ids


def test_without_the_extension_nothing_of_it_is_sent(client: OpenAI, asked: dict[str, Any]) -> None:
    answer = client.chat.completions.create(**asked).model_dump()
    assert "tuneloop" not in answer
    assert "tuneloop" not in answer["choices"][0]


def test_logprobs_are_those_of_the_sampled_tokens(
    client: OpenAI, truth: dict[int, Reply], asked: dict[str, Any]
) -> None:
    entries = client.chat.completions.create(**asked, seed=1, logprobs=True).choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == pytest.approx(truth[1].logprobs, abs=1e-4)


def test_a_stop_sequence_ends_the_reply_before_it_and_counts_the_tokens_to_it(
    client: OpenAI, policy: Policy, truth: dict[int, Reply], asked: dict[str, Any], valid_seed: int
) -> None:
    (choice,) = client.chat.completions.create(
        **asked, seed=valid_seed, stop=["</tool_call>"], extra_body=TOKENS
    ).choices
    expected, ids = truth[valid_seed].ids, choice.tuneloop["token_ids"]
    assert ids == expected[: len(ids)]
    assert "</tool_call>" in policy.decode(ids)
    assert "</tool_call>" not in policy.decode(ids[:-1])
    # The call never closes, so it is text, up to the sequence.
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert choice.tuneloop["text"] == policy.decode(ids).removesuffix("</tool_call>")


def test_a_tools_answer_goes_back_into_the_next_prompt(
    client: OpenAI, policy: Policy, asked: dict[str, Any], valid_seed: int
) -> None:
    said = client.chat.completions.create(**asked, seed=valid_seed).choices[0].message
    call = said.tool_calls[0]
    history = [*asked["messages"], said, {"role": "tool", "tool_call_id": call.id, "content": "O plays 9."}]
    answer = client.chat.completions.create(**(asked | {"messages": history}), seed=1, extra_body=TOKENS)
    prompt = policy.tokenizer.decode(answer.tuneloop["prompt_token_ids"])
    square = json.loads(call.function.arguments)["square"]
    # As the policy's own template writes a call and what a tool says (chatml.jinja).
    assert f'{{"name": "choose_square", "arguments": {{"square": {square}}}}}\n</tool_call>' in prompt
    assert "<tool_response>\nO plays 9.\n</tool_response>" in prompt


def test_with_tool_choice_none_there_are_neither_tools_in_the_prompt_nor_calls(
    client: OpenAI, asked: dict[str, Any], policy: Policy
) -> None:
    answer = client.chat.completions.create(**asked, tool_choice="none", seed=1, extra_body=TOKENS)
    assert answer.tuneloop["prompt_token_ids"] == policy.prompt_ids(asked["messages"], [])
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "choose_square"}}])
def test_a_required_call_is_drawn_until_it_comes(client: OpenAI, asked: dict[str, Any], choice: Any) -> None:
    answered = 0
    for seed in range(8):
        try:
            answer = client.chat.completions.create(**asked, tool_choice=choice, seed=seed, extra_body=TOKENS)
        except openai.UnprocessableEntityError as refused:
            assert refused.code == "tool_choice_not_met"
            continue
        assert answer.choices[0].message.tool_calls[0].function.name == "choose_square"
        assert 1 <= answer.choices[0].tuneloop["draws"] <= 4
        answered += 1
    assert answered


def test_a_call_that_never_comes_is_an_error_and_not_some_other_reply(client: OpenAI, asked: dict[str, Any]) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="4 replies"):
        client.chat.completions.create(**(asked | {"max_tokens": 1}), tool_choice="required")


def test_a_stream_adds_up_to_the_whole_answer(client: OpenAI, asked: dict[str, Any], valid_seed: int) -> None:
    options = asked | {"seed": valid_seed, "n": 3, "logprobs": True, "extra_body": TOKENS}
    whole = client.chat.completions.create(**options)
    *parts, last = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage) == ([], whole.usage)
    for expected in whole.choices:
        mine = [c for part in parts for c in part.choices if c.index == expected.index]
        deltas = [choice.delta for choice in mine]
        assert deltas[0].role == "assistant"
        assert "".join(d.content or "" for d in deltas) == (expected.message.content or "")
        pieces = [call.function for d in deltas for call in d.tool_calls or []]
        calls = [call.function for call in expected.message.tool_calls or []]
        assert "".join(p.name or "" for p in pieces) == "".join(c.name for c in calls)
        assert "".join(p.arguments for p in pieces) == "".join(c.arguments for c in calls)
        assert [c.finish_reason for c in mine if c.finish_reason] == [expected.finish_reason]
        values, whole_values = ([e.logprob for e in c.logprobs.content] for c in (mine[-1], expected))
        assert values == pytest.approx(whole_values, abs=1e-4)
        assert mine[-1].tuneloop["token_ids"] == expected.tuneloop["token_ids"]


def test_a_reply_without_a_limit_of_its_own_ends_at_the_servers(client: OpenAI, policy: Policy) -> None:
    answer = client.chat.completions.create(model="nano", messages=[{"role": "user", "content": "zzz"}], seed=1)
    assert answer.usage.completion_tokens <= 256
