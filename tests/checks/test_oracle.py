"""The Tic-Tac-Toe oracle and board facts: right by themselves, and in agreement with the code that they check."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pytest

from tuneloop.checks import load_checks
from tuneloop.errors import UserError
from tuneloop.tasks import load_task
from tuneloop.tasks.second_reader import READERS
from tuneloop.tasks.tictactoe.oracle import REWARDS, move, oracle
from tuneloop.toolcalls import Reasoning, ToolCall, dialect_names, load_dialect, read_reply

TASK = load_task("tictactoe")
CHECKS = load_checks("tictactoe")
THINK, OPENED = Reasoning("<think>", "</think>"), Reasoning("<think>", "</think>", opened_by_prompt=True)
EMPTY = ".../.../..."


@cache
def boards() -> list[dict]:
    """All there are. Not made when the file is imported: every process of the suite does that."""
    return TASK.generate(2201, 1)


def call(arguments: str, name: str = "choose_square") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


BARE_CALL = '{"name": "choose_square", "arguments": {"square": 5}}'


def test_move_rewards_reproduce_the_published_means_over_all_boards():
    """−0.377 for any square, +0.483 for any free square, 0.923 at best: measured before this code was
    written (DESIGN, "Reward and outcomes")."""
    anywhere = free = best = 0.0
    for record in boards():
        rewards = [REWARDS[move(TASK.show(record), square)] for square in range(1, 10)]
        allowed = [reward for reward in rewards if reward > -1]
        anywhere, free, best = anywhere + sum(rewards) / 9, free + sum(allowed) / len(allowed), best + max(rewards)
    assert [round(total / len(boards()), 3) for total in (anywhere, free, best)] == [-0.377, 0.483, 0.923]


@pytest.mark.parametrize(
    ("board", "square", "outcome"),
    [
        ("XX./OO./...", 3, "win"),
        ("XX./OO./...", 1, "occupied"),
        ("XX./OO./...", 6, "legal"),  # 3 wins at once; after 6 O must take 3, and best play is a draw
        ("OO./.X./..X", 3, "optimal"),  # stops O and threatens 6 and 7: X wins one move later
        ("OO./.X./..X", 8, "legal"),  # O takes 3
        (EMPTY, 5, "optimal"),  # every first square keeps the draw
    ],
)
def test_moves_worked_out_by_hand(board, square, outcome):
    assert move(board, square) == outcome


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (call('{"square": 5}'), "optimal"),
        ("I think <b>.\n" + call('{"square": 5}') + "\nDone.", "optimal"),
        (call('{"square": 3.9}'), "bad_arguments"),
        (call('{"square": 5.0}'), "bad_arguments"),
        (call('{"square": true}'), "bad_arguments"),
        (call('{"square": "3"}'), "bad_arguments"),
        (call('{"square": １}'), "bad_arguments"),
        (call('{"square": 10}'), "bad_arguments"),
        (call('{"square": 1e400}'), "bad_arguments"),
        (call('{"square": 5, "square": 6}'), "bad_arguments"),
        (call('{"square": 5, "why": 1}'), "bad_arguments"),
        (call("{}"), "bad_arguments"),
        (call("[" * 20_000), "bad_arguments"),
        (call("9" * 5_000), "bad_arguments"),
        ("<tool_call>choose_square(5)</tool_call>", "bad_arguments"),
        (call('{"square": 5}', name="place"), "wrong_tool"),
        (call('{"square": 5}') + call('{"square": 5}'), "several_calls"),
        ('<tool_call>{"name": "choose_square", "arguments": {"square": 5}}', "no_call"),
        ('{"name": "choose_square", "arguments": {"square": 5}}', "no_call"),
        ("", "no_call"),
        ("<think>" + call('{"square": 5}') + "</think>", "no_call"),
        ("<think>" + call('{"square": 5}'), "no_call"),
        ("<think>say " + call('{"square": 1}') + "</think>" + call('{"square": 5}'), "optimal"),
        (call('{"square": 1}') + "</think>" + call('{"square": 5}'), "optimal"),
    ],
)
def test_hermes_replies_to_the_empty_board(text, outcome):
    """The source is the strict reader's contract: rules 1 to 3 in `tuneloop.toolcalls.reader`."""
    assert oracle(EMPTY, text, THINK, "hermes") == (outcome, REWARDS[outcome])


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (BARE_CALL, "optimal"),
        ("<think>hm</think>\n" + BARE_CALL + "\n", "optimal"),
        ("```json\n" + BARE_CALL + "\n```", "optimal"),
        ("My move: " + BARE_CALL, "no_call"),
        (BARE_CALL + " Done.", "no_call"),
        (BARE_CALL[:-1], "no_call"),
        (BARE_CALL + BARE_CALL, "several_calls"),
        (BARE_CALL + ";\n" + BARE_CALL, "several_calls"),
        (BARE_CALL.replace("5", "5.0"), "bad_arguments"),
        (BARE_CALL.replace("5", "[" * 70 + "]" * 70), "bad_arguments"),
        (BARE_CALL.replace("arguments", "parameters"), "bad_arguments"),
        (BARE_CALL.replace("choose_square", "place"), "wrong_tool"),
        (BARE_CALL.replace("choose_square", "choose_<think>hm</think>square"), "wrong_tool"),
        (call('{"square": 5}'), "no_call"),
    ],
)
def test_plain_replies_to_the_empty_board(text, outcome):
    """The source is the strict reader's contract, as above; an object with prose around it is no call."""
    assert oracle(EMPTY, text, THINK, "plain") == (outcome, REWARDS[outcome])


def test_a_reply_whose_prompt_opened_the_reasoning_starts_inside_it():
    assert oracle(EMPTY, call('{"square": 5}'), OPENED, "hermes")[0] == "no_call"
    assert oracle(EMPTY, "</think>" + call('{"square": 5}'), OPENED, "hermes")[0] == "optimal"


def test_without_reasoning_markers_nothing_is_cut():
    assert oracle(EMPTY, "<think>" + call('{"square": 5}'), None, "hermes")[0] == "optimal"


def test_the_replies_of_every_dialect_that_a_policy_may_write_can_be_checked():
    assert sorted(READERS) == dialect_names()


def test_a_dialect_that_the_oracle_cannot_read_is_refused_with_the_ones_it_can():
    with pytest.raises(UserError, match=r"'other'.*glm, hermes, llama, plain, qwen3_coder"):
        oracle(EMPTY, "", None, "other")


@pytest.mark.parametrize("dialect", sorted(READERS))
def test_oracle_and_scorer_agree_on_every_square_of_every_board(dialect):
    written = {square: ToolCall("choose_square", {"square": square}) for square in range(1, 10)}
    texts = {square: load_dialect(dialect).render(call) for square, call in written.items()}
    for square, text in texts.items():
        assert read_reply(text, load_dialect(dialect), TASK.tools, THINK) == written[square]
        # What a square is worth does not depend on the dialect: all boards once.
        for record in boards() if dialect == "hermes" else boards()[::20]:
            scored = TASK.score(record, written[square])
            assert oracle(TASK.show(record), text, THINK, dialect) == (scored.name, scored.reward)


BARE = [
    *(" ", "{", '"name"', ": ", '"', "choose_square", '"', ", ", '"arguments"', ": "),
    *("{", '"square"', ": ", "5", "}", "}", "\n"),
]
PIECES = {
    "plain": BARE,
    "llama": [piece.replace("arguments", "parameters") for piece in BARE],
    "qwen3_coder": [
        *("<tool_call>", "\n", "<function=", "choose_square", ">", "\n", "<parameter=", "square", ">", "\n", "5", "\n"),
        *("</parameter>", "\n", "</function>", "\n", "</tool_call>"),
    ],
    "hermes": [
        *("<tool_call>", "\n", "{", '"name"', ": ", '"', "choose_square", '"', ", ", '"arguments"', ": "),
        *("{", '"square"', ": ", "5", "}", "}", "\n", "</tool_call>"),
    ],
    "glm": [
        *("<tool_call>", "choose_square", "\n", "<arg_key>", "square", "</arg_key>", "\n"),
        *("<arg_value>", "5", "</arg_value>", "\n", "</tool_call>"),
    ],
}
NOISE = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_value>", "{", "}", "[", '"', ",", "\\"),
    *("3.9", "true", '"3"', "１", "-5", "05", "1e0", "1e999", "NaN", "9" * 310, "[" * 70, " ", "\u00a0", "x", "\ud800"),
    *('{"name":"choose_square","arguments":{"square":7}}', '{"name":"x","arguments":{}}', ',"a":1', '"square":6,'),
    *('{"name":"choose_square","parameters":{"square":7}}', "```json", "```", "<|python_tag|>", "; ", "{}", "]" * 70),
    *("<function=", "</function>", "<parameter=", "</parameter>", ">", "\n", "<parameter=why>1</parameter>"),
]


@pytest.mark.parametrize("dialect", sorted(READERS))
def test_oracle_and_reader_agree_on_thousands_of_broken_replies(dialect):
    random = Random(2026)
    seen: Counter[str] = Counter()
    for number in range(3000):
        pieces = list(PIECES[dialect]) * random.choice((0, 1, 1, 1, 1, 2))
        pieces = random.choice((pieces, ["<think>", "hm", "</think>", *pieces], [*NOISE[:2], *pieces]))
        for _ in range(random.randint(0, 4)):
            at = random.randint(0, len(pieces))
            pieces[at : at + random.randint(0, 1)] = random.choice(([], [random.choice(NOISE)]))
        text = "".join(pieces)
        reasoning = random.choice((None, THINK, OPENED))
        record = boards()[number % len(boards())]
        scored = TASK.score(record, read_reply(text, load_dialect(dialect), TASK.tools, reasoning))
        assert oracle(TASK.show(record), text, reasoning, dialect) == (scored.name, scored.reward), repr(text)
        seen[scored.name] += 1
    assert set(seen) == set(TASK.outcomes), "the texts reach every outcome"


def test_every_generated_board_is_reached_by_play_and_the_count_of_open_boards_is_known():
    """1 + 72 + 756 + 1372 boards of 0, 2, 4 and 6 marks (DESIGN, "Boards")."""
    facts = [CHECKS.record_facts(record) for record in boards()]
    assert Counter(fact["marks"] for fact in facts) == {0: 1, 2: 72, 4: 756, 6: 1372}
    assert {(fact["lead"], fact["three"], fact["open_game"]) for fact in facts} == {(0, "nobody", "reached")}


def test_the_checks_split_the_boards_into_the_same_304_classes_as_the_task():
    """304 classes under the 8 symmetries (DESIGN, "Boards")."""
    pairs = {(CHECKS.split_class(record), TASK.split_key(record)) for record in boards()}
    assert len(pairs) == len({mine for mine, _ in pairs}) == len({theirs for _, theirs in pairs}) == 304


@pytest.mark.parametrize("board", [None, 5, [], [[1]], [["X"]] * 3, [["X", "O", 1]] * 3, [["X", "O", "."]] * 4])
def test_facts_of_a_broken_board_never_raise(board):
    assert CHECKS.record_facts({"id": "a", "board": board})["shape"] == "not 3 rows of 3 texts"
    assert CHECKS.split_class({"id": "a", "board": board}) is None
    assert CHECKS.record_facts({}).keys() == CHECKS.record_facts(boards()[0]).keys()


def test_a_task_without_checks_is_refused(monkeypatch):
    monkeypatch.setattr("tuneloop.checks.find_spec", lambda name: None)
    with pytest.raises(UserError, match="'tictactoe' has no checks"):
        load_checks("tictactoe")


def test_checks_that_lack_a_member_or_an_outcome_are_refused(monkeypatch):
    monkeypatch.delitem(CHECKS.REWARDS, "win")
    with pytest.raises(UserError, match="exactly the outcomes of the task"):
        load_checks("tictactoe")
    monkeypatch.delattr(CHECKS, "oracle")
    with pytest.raises(UserError, match="lacks oracle"):
        load_checks("tictactoe")
