"""The `tuneloop` command, as a person at a shell meets it."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from tuneloop.cli import main
from tuneloop.toolcalls import ToolCall, dialect_names, load_dialect

BOARD = "X.O/.O./X.."
"""X to move. By hand: 4 completes 1-4-7 (win); 8 and 9 threaten 7-8-9 and 1-4-7 at once and still
win (optimal); 2 and 6 let O hold the draw at 4 (legal); the rest is occupied."""

OUTCOMES = {1: "occupied", 2: "legal", 3: "occupied", 4: "win", 5: "occupied", 6: "legal", 7: "occupied"} | {
    8: "optimal",
    9: "optimal",
}
REWARDS = {"occupied": -1.0, "legal": 0.0, "optimal": 0.8, "win": 1.0}


def choose(square: int, dialect: str = "hermes") -> bytes:
    return load_dialect(dialect).render(ToolCall("choose_square", {"square": square})).encode()


@pytest.fixture
def score(monkeypatch, capsys):
    """Runs `tuneloop score` on a reply in this process: (exit status, standard output, standard error)."""

    def run(reply: bytes, *more: str, board: str = BOARD, dialect: str = "hermes") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(reply)))
        status = main(["score", "--board", board, "--dialect", dialect, *more])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.mark.parametrize(("square", "outcome"), OUTCOMES.items())
def test_a_move_is_printed_as_one_line_of_outcome_reward_and_square(score, square, outcome):
    status, out, err = score(choose(square))
    assert (status, err) == (0, "")
    assert out.endswith("\n")
    assert json.loads(out) == {"outcome": outcome, "reward": REWARDS[outcome], "square": square}


@pytest.mark.parametrize("dialect", dialect_names())
def test_every_dialect_can_be_scored(score, dialect):
    assert json.loads(score(choose(4, dialect), dialect=dialect)[1])["outcome"] == "win"


def test_a_reply_without_a_call_has_no_square(score):
    assert json.loads(score(b"I take the corner.")[1]) == {"outcome": "no_call", "reward": -1.0, "square": None}


@pytest.mark.parametrize("reply", [b"", b"\xff\xfe\x00\xed\xa0\x80", b"\xf0\x9f\x98", b"[" * 20_000])
def test_any_bytes_are_a_reply(score, reply):
    status, out, err = score(reply)
    assert (status, err) == (0, "")
    assert json.loads(out)["outcome"] == "no_call"


def test_bytes_that_are_no_text_do_not_hide_the_call_beside_them(score):
    assert json.loads(score(b"\xff\xfe " + choose(4))[1])["outcome"] == "win"


def test_a_call_inside_the_reasoning_is_no_call_and_the_markers_can_be_named(score):
    quoted = b"<think>" + choose(4) + b"</think>"
    assert json.loads(score(quoted)[1])["outcome"] == "no_call"
    assert json.loads(score(quoted, "--reasoning", "none")[1])["outcome"] == "win"
    assert json.loads(score(b"[[" + choose(4) + b"]]", "--reasoning", "[[,]]")[1])["outcome"] == "no_call"


def test_a_prompt_that_opened_the_reasoning_puts_the_reply_inside_it(score):
    assert json.loads(score(choose(4), "--opened-by-prompt")[1])["outcome"] == "no_call"
    assert json.loads(score(b"so</think>" + choose(4), "--opened-by-prompt")[1])["outcome"] == "win"


@pytest.mark.parametrize(
    ("board", "says"),
    [
        ("X.O/.../XO", "X.O/.../XO."),
        ("XXX/OO./...", "over"),
        ("X../.../...", "X is not to move"),
        ("", "slash"),
        ("x.o/.../xo.", "X, O or ."),
    ],
)
def test_a_bad_board_is_one_line_on_standard_error_and_status_2(score, board, says):
    status, out, err = score(choose(4), board=board)
    assert (status, out) == (2, "")
    assert err.startswith("tuneloop: error: ")
    assert err.count("\n") == 1
    assert says in err


def test_an_unknown_dialect_or_task_is_answered_with_the_known_ones(score):
    status, _, err = score(choose(4), dialect="xml")
    assert status == 2
    assert "hermes" in err
    status, _, err = score(choose(4), "--task", "chess")
    assert status == 2
    assert "tictactoe" in err


@pytest.mark.parametrize("markers", ["<think>", ",", "<think>,", ",</think>", "a,a", ""])
def test_reasoning_needs_two_different_markers(score, markers):
    status, _, err = score(choose(4), "--reasoning", markers)
    assert status == 2
    assert "--reasoning" in err


@pytest.mark.parametrize("arguments", [[], ["score"], ["scores"], ["score", "--bored", "x"]])
def test_bad_arguments_are_one_line_and_status_2(capsys, arguments):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tuneloop: error: ")
    assert err.count("\n") == 1


def test_control_c_ends_with_status_130(monkeypatch):
    class Interrupted:
        @property
        def buffer(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert main(["score", "--board", BOARD, "--dialect", "hermes"]) == 130


def test_a_closed_standard_input_is_an_error_in_words(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["score", "--board", BOARD, "--dialect", "hermes"]) == 2
    assert "standard input" in capsys.readouterr().err


def test_the_command_starts_without_importing_anything_heavy():
    program = (
        "import sys\n"
        "from tuneloop.cli import main\n"
        f"status = main(['score', '--board', {BOARD!r}, '--dialect', 'hermes'])\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'great_expectations', 'prefect', 'vllm'}\n"
        "print(*sorted(heavy & set(sys.modules)), file=sys.stderr, end='')\n"
        "sys.exit(status)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=choose(9), capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert json.loads(ran.stdout)["outcome"] == "optimal"
