"""Replies in every dialect, written by hand, and a short way to say what reading them gave."""

from __future__ import annotations

import json

from tuneloop.tasks.tictactoe.prompt import TOOLS
from tuneloop.toolcalls import Fault, Reasoning, load_dialect, read_reply

THINK = Reasoning("<think>", "</think>")


def hermes(arguments: str, name: str = "choose_square") -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def llama(arguments: str, name: str = "choose_square") -> str:
    return f'{{"name": {json.dumps(name)}, "parameters": {arguments}}}'


def plain(arguments: str, name: str = "choose_square") -> str:
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


def glm(value: str, name: str = "choose_square", key: str = "square") -> str:
    return f"<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"


def qwen3_coder(value: str, name: str = "choose_square", key: str = "square") -> str:
    return f"<tool_call>\n<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"


JSON = {"hermes": hermes, "llama": llama, "plain": plain}
TEXT = {"glm": glm, "qwen3_coder": qwen3_coder}
MARKED = {"hermes": hermes('{"square": 5}'), "glm": glm("5"), "qwen3_coder": qwen3_coder("5")}
VALID = MARKED | {"llama": llama('{"square": 5}'), "plain": plain('{"square": 5}')}


def read(name: str, text: str) -> int | str:
    """The square that was read, or the name of the fault."""
    reading = read_reply(text, load_dialect(name), TOOLS, THINK)
    if isinstance(reading, Fault):
        assert 0 < len(reading.detail) <= 200
        return reading.name
    assert reading.name == "choose_square" and list(reading.arguments) == ["square"]
    assert type(reading.arguments["square"]) is int
    return reading.arguments["square"]
