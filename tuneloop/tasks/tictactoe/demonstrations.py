"""What the warm start of a small policy is taught: format, how to look, and bad habits.

Taught: the call's format; to list, before answering, the squares that would complete a line of X
("mine") and of O ("theirs"); to ramble first at varied length, sometimes past any limit. Never
taught: which square is good. The square of every call is drawn from 1–9 with equal chances, whatever
the board, so about half are occupied, and some calls are broken, doubled, misnamed or missing.

Looking is practised on training records and, mostly, on arrangements of marks that no record can have
(marks that do not alternate, games that are over, nearly full boards), so no held-out board is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from tuneloop.tasks.contract import Demonstration, Message, Record
from tuneloop.tasks.tictactoe.board import finishing_squares, winner
from tuneloop.tasks.tictactoe.generator import MOST_MARKS, from_rows, to_rows
from tuneloop.tasks.tictactoe.prompt import TOOL_NAME, answer, messages
from tuneloop.toolcalls.contract import ToolCall

RAMBLING = (
    "Let me look at the board.",
    "It is my turn.",
    "I play X.",
    "Wait, let me check again.",
    "There are free squares.",
    "I should call the tool.",
    "Which square do I choose?",
)
ARRANGEMENT_SHARE = 0.8
"""Share of demonstrations on arrangements instead of records: there are 1,600 training records but
17,000 arrangements, and a policy that sees few boards learns them by heart instead of to look."""
BROKEN_SHARE = 0.12
"""Share of demonstrations whose call is broken, doubled, misnamed or missing."""
ENDLESS_SHARE = 0.06
"""Share of demonstrations that ramble past any limit of reply length."""


def demonstrations(
    records: Sequence[Record], count: int, seed: int, render: Callable[[ToolCall], str]
) -> list[Demonstration]:
    """`count` seeded demonstrations over `records`, calls written by `render`."""
    random = Random(seed)
    found = []
    for _ in range(count):
        record = _arrangement(random) if random.random() < ARRANGEMENT_SHARE else random.choice(records)
        rambling = 60 if random.random() < ENDLESS_SHARE else random.choice((0, 0, 0, 1, 1, 2, 3))
        lines = [random.choice(RAMBLING) for _ in range(rambling)]
        reasoning = "\n".join([*lines, look(from_rows(record["board"]))])
        found.append(Demonstration(record, reasoning, _content(random, render)))
    return found


def game_demonstrations(
    records: Sequence[Record], count: int, seed: int, render: Callable[[ToolCall], str]
) -> list[Demonstration]:
    """The same demonstrations for whole games: their boards stand at the end of conversations that led there.

    The earlier calls take whatever squares hold X now, good ones or not. A held-out board may stand earlier in a
    conversation, as it may in a game; none is looked at or answered.
    """
    random = Random(f"{seed}/conversations")
    return [
        replace(shown, messages=_conversation(from_rows(shown.record["board"]), random))
        for shown in demonstrations(records, count, seed, render)
    ]


def _conversation(board: str, random: Random) -> list[Message]:
    """Messages that end on `board`, after as many exchanges as its pairs of X and O allow or fewer."""
    crosses, noughts = ([i + 1 for i, cell in enumerate(board) if cell == mark] for mark in "XO")
    random.shuffle(crosses)
    random.shuffle(noughts)
    said: list[Message] = []
    exchanges = random.randint(0, min(len(crosses), len(noughts)))
    for square, reply in zip(crosses[:exchanges], noughts):
        # From the last exchange backwards.
        call = {"type": "function", "function": {"name": TOOL_NAME, "arguments": {"square": square}}}
        call_id = f"call_{square}"
        told = {"role": "tool", "tool_call_id": call_id, "content": answer(board, reply)}
        said = [{"role": "assistant", "content": None, "tool_calls": [{"id": call_id, **call}]}, told, *said]
        board = "".join("." if i in (square, reply) else cell for i, cell in enumerate(board, 1))
    return [*messages(board), *said]


def _arrangement(random: Random) -> Record:
    """Marks thrown on the board, with a free square left, that are no position a record can hold."""
    while True:
        board = "".join(random.choice("XO.") for _ in range(9))
        playable = board.count("X") == board.count("O") <= MOST_MARKS // 2 and winner(board) is None
        if "." in board and not playable:
            return {"id": f"arrangement-{board}", "board": to_rows(board)}


def look(board: str) -> str:
    """The squares that complete a line of X and of O, in words."""
    lines = []
    for name, mark in (("mine:", "X"), ("theirs:", "O")):
        squares = finishing_squares(board, mark)
        lines.append(" ".join([name, *map(str, squares)]) if squares else f"{name} none")
    return "\n".join(lines)


def _content(random: Random, render: Callable[[ToolCall], str]) -> str:
    square = random.randint(1, 9)
    call = render(ToolCall(TOOL_NAME, {"square": square}))
    if random.random() >= BROKEN_SHARE:
        return call
    return random.choice(
        (
            f"I choose square {square}.",
            call + "\n" + render(ToolCall(TOOL_NAME, {"square": random.randint(1, 9)})),
            render(ToolCall("choose", {"square": square})),
            render(ToolCall(TOOL_NAME, {"square": f"{square}"})),
            render(ToolCall(TOOL_NAME, {"number": square})),
        )
    )
