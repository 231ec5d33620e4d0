"""What each dialect writes: calls, the text about tools, the entry for a chat template."""

from __future__ import annotations

import subprocess
import sys

import jinja2
import pytest

from tuneloop.errors import UserError
from tuneloop.toolcalls import ToolCall, dialect_names, load_dialect

CALL = ToolCall("choose_square", {"square": 5})

# The formats of the model families' own chat templates, written down by hand.
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "choose_square", "arguments": {"square": 5}}\n</tool_call>',
    "qwen3_coder": (
        "<tool_call>\n<function=choose_square>\n<parameter=square>\n5\n</parameter>\n</function>\n</tool_call>"
    ),
    "glm": "<tool_call>choose_square\n<arg_key>square</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
    "llama": '{"name": "choose_square", "parameters": {"square": 5}}',
    "plain": '{"name": "choose_square", "arguments": {"square": 5}}',
}

# How the families' templates write a call of the history: `f` is the function of a `tool_calls` entry.
TEMPLATES = {
    "hermes": '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>',
    "qwen3_coder": (
        "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments|items %}<parameter={{ k }}>\n{{ v }}\n"
        "</parameter>\n{% endfor %}</function>\n</tool_call>"
    ),
    "glm": (
        "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
        "<arg_value>{{ v | tojson }}</arg_value>\n{% endfor %}</tool_call>"
    ),
    "llama": '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
}


def test_the_known_dialects_are_these():
    assert dialect_names() == sorted(WRITTEN)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_written_as_the_model_family_writes_it(name):
    assert load_dialect(name).render(CALL) == WRITTEN[name]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_renders_the_history_entry_to_the_text_that_the_policy_wrote(name):
    entry = load_dialect(name).history(CALL)
    assert entry["type"] == "function"
    assert jinja2.Template(TEMPLATES[name]).render(f=entry["function"]) == WRITTEN[name]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_system_text_carries_the_tool_and_how_to_call_it(name):
    tool = {"type": "function", "function": {"name": "aim", "description": "Über α", "parameters": {"type": "object"}}}
    text = load_dialect(name).system_text([tool])
    assert '"name": "aim"' in text
    assert "Über α" in text
    skeleton = {"glm": "<arg_key>", "llama": '"parameters":', "plain": '"arguments":', "hermes": '"arguments":'}
    assert skeleton.get(name, "<parameter=") in text.replace('"parameters": {"type"', "")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_dialect_names_itself(name):
    assert load_dialect(name).name == name


@pytest.mark.parametrize("name", ["", "xml", "__init__", "../hermes", "Hermes"])
def test_an_unknown_dialect_is_answered_with_the_known_ones(name):
    with pytest.raises(UserError, match="glm, hermes, llama, plain, qwen3_coder"):
        load_dialect(name)


@pytest.mark.parametrize("name", ["glm", "qwen3_coder"])
def test_text_dialects_refuse_to_write_what_they_cannot_quote(name):
    with pytest.raises(ValueError, match="</tool_call>"):
        load_dialect(name).render(ToolCall("note", {"text": "a</tool_call>b"}))


def test_the_reader_and_the_task_need_no_torch():
    program = (
        "import sys\n"
        "import tuneloop.tasks, tuneloop.toolcalls as t\n"
        "tuneloop.tasks.load_task('tictactoe'), [t.load_dialect(n) for n in t.dialect_names()]\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
