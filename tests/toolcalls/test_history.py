"""The calls of earlier turns as chat templates want them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import jinja2
import pytest

from tuneloop.errors import UserError
from tuneloop.toolcalls import ToolCall, load_dialect, read_reply
from tuneloop.toolcalls.history import Messages, history_form, in_form

CALL = ToolCall("note", {"text": 'a "quoted" λ', "n": 5})
TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}},
    },
}

# By what the families' own templates do with `f`, the function of a `tool_calls` entry: the form that they want.
TEMPLATES = {
    "tojson": (
        '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>',
        "hermes",
    ),
    "either": (
        '<tool_call>\n{"name": "{{ f.name }}", "arguments": '
        "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}}\n</tool_call>",
        "hermes",
    ),
    "items": (
        "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>"
        "{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>",
        "glm",
    ),
    "joined": (
        '{{ \'<tool_call>\\n{"name": "\' + f.name + \'", "arguments": \' + f.arguments + "}\\n</tool_call>" }}',
        "hermes",
    ),
    "written": ('<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments }}}\n</tool_call>', "hermes"),
}
FORMS = {"tojson": "mapping", "either": "mapping", "items": "mapping", "joined": "text", "written": "text"}


def renderer(template: str) -> Callable[[Messages], str]:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    # As chat templates are rendered: `tojson` escapes nothing for HTML.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    made = environment.from_string(template)

    def render(messages: Messages) -> str:
        try:
            return made.render(f=messages[-1]["tool_calls"][0]["function"])
        except jinja2.TemplateError as error:
            raise UserError(str(error)) from None

    return render


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gets_arguments_in_the_form_in_which_it_writes_what_the_policy_wrote(name: str) -> None:
    template, dialect = TEMPLATES[name][0], load_dialect(TEMPLATES[name][1])
    render = renderer(template)
    assert history_form(render) == FORMS[name]
    messages = [{"role": "assistant", "content": "", "tool_calls": [dialect.history(CALL)]}]
    written = render(in_form(messages, history_form(render)))
    assert read_reply(written, dialect, [TOOL], None) == CALL


@pytest.mark.parametrize("template", ["", "{{ f.name }}", "{{ f.arguments.items() | list }}{{ f.name }}"])
def test_a_template_that_does_not_write_calls_is_a_user_error(template: str) -> None:
    with pytest.raises(UserError, match="does not write the calls"):
        history_form(renderer(template))


def test_both_forms_lead_into_one_another_and_other_messages_stay_as_they_are() -> None:
    entry = load_dialect("hermes").history(CALL)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [entry]}]
    as_text = in_form(messages, "text")
    assert as_text[0] == messages[0]
    assert as_text[1]["tool_calls"][0]["function"]["arguments"] == '{"text": "a \\"quoted\\" λ", "n": 5}'
    assert in_form(as_text, "mapping") == in_form(messages, "mapping") == messages
