"""Hostile replies in the two dialects that write arguments as bare text between tags."""

from __future__ import annotations

import pytest
from replies import TEXT, VALID, glm, qwen3_coder, read

from tuneloop.toolcalls import Fault, ToolCall, load_dialect, read_reply


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call>choose_square<arg_key>square</arg_key><arg_value>5</arg_value></tool_call>", 5),
        ("<tool_call>\nchoose_square\n<arg_key>square</arg_key>\n\n<arg_value>5</arg_value></tool_call>", 5),
        ("<tool_call>choose_square\n</tool_call>", "bad_arguments"),
        ("<tool_call>choose_square\n<arg_key>square</arg_key>\n</tool_call>", "bad_arguments"),
        ("<tool_call>choose_square\n<arg_value>5</arg_value>\n</tool_call>", "bad_arguments"),
        ("<tool_call>choose_square\n<arg_key>square\n<arg_value>5</arg_value>\n</tool_call>", "bad_arguments"),
        ("<tool_call>choose_square\n<arg_key>square</arg_key>\n<arg_value>5\n</tool_call>", "bad_arguments"),
        ("<tool_call>choose_square\n<arg_key>square</arg_key>=<arg_value>5</arg_value>\n</tool_call>", "bad_arguments"),
        (
            glm("5", key=" square"),
            "bad_arguments",
        ),
        (glm("5</arg_value><arg_value>5"), "bad_arguments"),
        (glm("5</arg_value>\n<arg_key>square</arg_key>\n<arg_value>5"), "bad_arguments"),
        (glm("5</arg_value>\n<arg_key>why</arg_key>\n<arg_value>5"), "bad_arguments"),
        (glm("5", name="choose square"), "bad_arguments"),
        (glm("5", name=""), "bad_arguments"),
        (glm("5", name="a\ud800"), "wrong_tool"),
        (VALID["qwen3_coder"], "bad_arguments"),
    ],
)
def test_glm_tags(text, expected):
    assert read("glm", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call><function=choose_square><parameter=square>5</parameter></function></tool_call>", 5),
        ("<tool_call>\n\n<function=choose_square>\n<parameter=square>\n5</parameter> </function>\t</tool_call>", 5),
        ("<function=choose_square><parameter=square>5</parameter></function>", "no_call"),
        ("<tool_call><function=choose_square></function></tool_call>", "bad_arguments"),
        ("<tool_call><function=choose_square><parameter=square>5</parameter></tool_call>", "bad_arguments"),
        ("<tool_call><function=choose_square><parameter=square>5</function></tool_call>", "bad_arguments"),
        ("<tool_call><function=choose_square>5</function></tool_call>", "bad_arguments"),
        ("<tool_call><function=</function></tool_call>", "bad_arguments"),
        (qwen3_coder("5</parameter>5"), "bad_arguments"),
        (qwen3_coder("5</parameter></function>"), "bad_arguments"),
        (qwen3_coder("5</parameter>\n<parameter=square>\n5"), "bad_arguments"),
        (qwen3_coder("5</parameter>\n<parameter=why>\n5"), "bad_arguments"),
        (qwen3_coder("5", key=" square"), "bad_arguments"),
        (qwen3_coder("5", name=" choose_square"), "wrong_tool"),
        (
            "<tool_call><function=choose_square><parameter=square>5</parameter></function>"
            "<function=choose_square><parameter=square>5</parameter></function></tool_call>",
            "several_calls",
        ),
        (VALID["glm"], "bad_arguments"),
    ],
)
def test_qwen3_coder_tags(text, expected):
    assert read("qwen3_coder", text) == expected


NOTE = {
    "type": "function",
    "function": {"name": "note", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
}


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("glm", ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]),
        ("qwen3_coder", ["<parameter=", "</parameter>", "</function>"]),
    ],
)
def test_a_text_value_cannot_hold_the_tags_of_its_dialect(name, tags):
    def reading(value: str) -> ToolCall | Fault:
        return read_reply(TEXT[name](value, name="note", key="text"), load_dialect(name), [NOTE], None)

    assert reading("a < b\nand b > c") == ToolCall("note", {"text": "a < b\nand b > c"})
    assert {reading(f"a {tag} b").name for tag in tags} == {"bad_arguments"}
