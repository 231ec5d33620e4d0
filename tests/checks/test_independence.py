"""The oracles share no code with what they check, so that one mistake cannot be on both sides."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

ORACLES = ("tuneloop.tasks.tictactoe.oracle", "tuneloop.tasks.desk.oracle", "tuneloop.tasks.second_reader")
ALLOWED = {"tuneloop.errors": {"UserError"}, "tuneloop.toolcalls.contract": {"Reasoning"}}
"""Beside one another: how errors are told, and the markers of reasoning, which hold no code."""


@pytest.mark.parametrize("module", ORACLES)
def test_an_oracle_imports_nothing_of_the_reader_and_the_scorers(module: str) -> None:
    tree = ast.parse(Path(find_spec(module).origin).read_text(encoding="utf-8"))
    imported = [
        (source, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        for source in [alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")]
    ]
    ours = [(source, name) for source, name in imported if source.startswith((".", "tuneloop"))]
    assert ("tuneloop.toolcalls.contract", "Reasoning") in ours, "the imports were found"
    assert [pair for pair in ours if pair[0] not in ORACLES and pair[1] not in ALLOWED.get(pair[0], ())] == []
