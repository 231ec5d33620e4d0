"""What the policy is shown: the tool, the two messages, and in whole games the tool's answers. One text for
training, evaluation, games and the browser board."""

from __future__ import annotations

from tuneloop.tasks.contract import Message

TOOL_NAME = "choose_square"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": "Put your X on a free square.",
            "parameters": {
                "type": "object",
                "properties": {
                    "square": {"type": "integer", "minimum": 1, "maximum": 9, "description": "Number of the square."}
                },
                "required": ["square"],
                "additionalProperties": False,
            },
        },
    }
]

SYSTEM = (
    "You play Tic-Tac-Toe as X. The board lists every square by number with its mark; a dot is free. "
    "Answer with exactly one call of choose_square."
)


def messages(board: str) -> list[Message]:
    """System and user message for a board (nine characters, X to move)."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": _shown(board)}]


def answer(board: str, square: int) -> str:
    """What the tool answers in a whole game: the opponent's move to `square`, and the board after it."""
    return f"O takes {square}.\n{_shown(board)}"


def _shown(board: str) -> str:
    rows = (
        f"{name} " + " ".join(f"{square}{board[square - 1]}" for square in (first, first + 1, first + 2))
        for name, first in (("top", 1), ("middle", 4), ("bottom", 7))
    )
    return "\n".join(rows) + "\nYour move."
