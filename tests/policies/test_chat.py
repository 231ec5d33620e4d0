"""What a chat template can do is seen in what it writes; a template without tools gets them all the same."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from tuneloop.errors import UserError
from tuneloop.policies.card import PolicyCard
from tuneloop.policies.chat import guess_dialect, knows_tools, render_chat, turn_end
from tuneloop.policies.nano import END, nano_tokenizer
from tuneloop.policies.policy import Policy
from tuneloop.tasks import load_task
from tuneloop.toolcalls import ToolCall, dialect_names, load_dialect, read_reply

TASK = load_task("tictactoe")
TALK = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Go."}]
CALL = ToolCall("choose_square", {"square": 7})

WITHOUT_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As SmolLM2's, without its own system message."""


def tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    made = nano_tokenizer([], 300)
    made.chat_template = template or made.chat_template
    return made


def policy(template: str | None, dialect: str = "plain") -> Policy:
    return Policy(None, tokenizer(template), PolicyCard("x", dialect, None, thinking=True))


def with_tools(how: str) -> str:
    """A template that writes the tools, then how a call is written."""
    return "{% for t in tools %}{{ t | tojson }}{% endfor %}{# " + how + " #}" + WITHOUT_TOOLS


def test_support_for_tools_is_seen_in_what_the_template_writes() -> None:
    assert knows_tools(tokenizer(None))
    assert not knows_tools(tokenizer(WITHOUT_TOOLS))
    # Mentioning tools is not writing them.
    assert not knows_tools(tokenizer("{% if tools %}{% endif %}" + WITHOUT_TOOLS))


@pytest.mark.parametrize("dialect", dialect_names())
def test_without_support_the_dialect_describes_the_tools_in_the_system_message(dialect: str) -> None:
    told = load_dialect(dialect).system_text(TASK.tools)
    text = policy(WITHOUT_TOOLS, dialect).prompt_text(TALK, TASK.tools)
    assert text == (
        f"<|im_start|>system\nPlay.\n\n{told}<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    )
    alone = policy(WITHOUT_TOOLS, dialect).prompt_text(TALK[1:], TASK.tools)
    assert alone == text.replace("Play.\n\n", "")
    assert policy(WITHOUT_TOOLS, dialect).prompt_text(TALK, []) == text.replace(f"\n\n{told}", "")


@pytest.mark.parametrize("dialect", dialect_names())
@pytest.mark.parametrize("as_text", [False, True])
def test_without_support_earlier_calls_are_written_as_the_policy_writes_them(dialect: str, as_text: bool) -> None:
    spoken = load_dialect(dialect)
    entry = spoken.history(CALL)
    if as_text:
        entry["function"] = entry["function"] | {"arguments": '{"square": 7}'}
    messages = [
        *TALK,
        {"role": "assistant", "content": None, "tool_calls": [entry]},
        {"role": "tool", "content": "taken"},
    ]
    text = policy(WITHOUT_TOOLS, dialect).prompt_text(messages, TASK.tools)
    reply = text.split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
    assert read_reply(reply, spoken, TASK.tools, None) == CALL
    assert "<|im_start|>user\n<tool_response>\ntaken\n</tool_response><|im_end|>" in text


def test_with_support_the_template_alone_writes_tools_and_history() -> None:
    history = {"role": "assistant", "content": "", "tool_calls": [load_dialect("hermes").history(CALL)]}
    own = policy(None, "hermes")
    expected = own.tokenizer.apply_chat_template(
        [*TALK, history], tools=TASK.tools, add_generation_prompt=True, tokenize=False, enable_thinking=True
    )
    assert own.prompt_text([*TALK, history], TASK.tools) == expected


def test_the_token_that_ends_an_answer_is_read_off_the_template() -> None:
    made = tokenizer(None)
    assert turn_end(made) == turn_end(tokenizer(WITHOUT_TOOLS)) == made.convert_tokens_to_ids(END)
    assert turn_end(tokenizer("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")) is None
    # A template that ends answers with another token than the tokenizer's own end, as Ling's <|role_end|>.
    other = tokenizer(WITHOUT_TOOLS.replace("<|im_end|>", "<|role_end|>"))
    other.add_special_tokens({"additional_special_tokens": ["<|role_end|>"]})
    assert turn_end(other) == other.convert_tokens_to_ids("<|role_end|>") != other.eos_token_id


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        (None, "hermes"),
        (WITHOUT_TOOLS, "plain"),
        (with_tools("<tool_call>{name}\n<arg_key>k</arg_key>\n<arg_value>v</arg_value></tool_call>"), "glm"),
        (with_tools("<tool_call><function=f><parameter=p>v</parameter></function></tool_call>"), "qwen3_coder"),
        (with_tools('{"name": n, "parameters": {}} <|python_tag|>'), "llama"),
    ],
)
def test_a_dialect_that_the_template_shows_is_recognised(template: str | None, dialect: str) -> None:
    assert guess_dialect(tokenizer(template)) == dialect


@pytest.mark.parametrize(
    ("how", "said"),
    [("call: [f(x=1)]", "none that is known"), ("<arg_key> or <function=", "glm and qwen3_coder")],
)
def test_a_dialect_that_cannot_be_told_is_asked_for_with_the_known_ones(how: str, said: str) -> None:
    with pytest.raises(UserError, match=f"policy.dialect: .*{said}.*glm, hermes, llama, plain, qwen3_coder"):
        guess_dialect(tokenizer(with_tools(how)))


@pytest.mark.parametrize("template", ["{{ raise_exception('no system message') }}", ""])
def test_a_template_that_refuses_or_is_missing_is_a_user_error(template: str) -> None:
    made = nano_tokenizer([], 300)
    made.chat_template = template or None
    with pytest.raises(UserError, match="its chat template cannot write this conversation"):
        render_chat(made, TALK, [], thinking=True)
