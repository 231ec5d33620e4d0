"""Claims about the fair choice of boards, and about drawing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import tuneloop.tasks
from tuneloop.report.gallery import choose_pairs, proportional
from tuneloop.report.pictures import as_text, task_pictures
from tuneloop.tasks.tictactoe.pictures import chosen_square, picture

RECORD = {"id": "a", "board": [["X", ".", "O"], [".", ".", "."], [".", ".", "."]]}


def greedy(rewards: list[float]) -> list[dict[str, Any]]:
    return [{"id": f"r{i:03d}", "decoding": "greedy", "reward": reward} for i, reward in enumerate(rewards)]


def test_kinds_are_shown_in_their_true_proportions() -> None:
    # Largest remainders by hand: 24 × (220, 170, 10) / 400 = 13.2, 10.2, 0.6 → 13, 10, 1.
    before, after = greedy([0.0] * 400), greedy([1.0] * 220 + [0.0] * 170 + [-1.0] * 10)
    found = choose_pairs(before, after, 24, seed=1)
    assert found.counts == {"improved": 220, "unchanged": 170, "worse": 10}
    assert found.shown == {"improved": 13, "unchanged": 10, "worse": 1}
    kinds = [pair.kind for pair in found.pairs]
    assert {kind: kinds.count(kind) for kind in found.shown} == found.shown
    assert all((p.after["reward"] > p.before["reward"]) == (p.kind == "improved") for p in found.pairs)


def test_a_rare_kind_is_never_left_out() -> None:
    # 24 × 1 / 400 = 0.06 would round to nothing.
    assert proportional({"improved": 399, "unchanged": 0, "worse": 1}, 24) == {
        "improved": 23,
        "unchanged": 0,
        "worse": 1,
    }


@pytest.mark.parametrize("counts", [(3, 2, 1), (1, 0, 0), (0, 7, 0), (1000, 1, 1), (5, 5, 5)])
@pytest.mark.parametrize("size", [1, 4, 24])
def test_places_are_all_dealt_out_and_never_exceed_what_there_is(counts: tuple[int, ...], size: int) -> None:
    of = dict(zip("abc", counts))
    places = proportional(of, min(size, sum(counts)))
    assert sum(places.values()) == min(size, sum(counts))
    assert all(0 <= places[kind] <= of[kind] for kind in of)


def test_the_draw_follows_the_seed() -> None:
    before, after = greedy([0.0] * 50), greedy([1.0] * 50)

    def ids(seed: int) -> list[str]:
        return [pair.before["id"] for pair in choose_pairs(before, after, 8, seed).pairs]

    assert ids(1) == ids(1) != ids(2)
    assert ids(1) == sorted(ids(1))  # in the order of the table


def row(square: Any, outcome: str = "optimal") -> dict[str, Any]:
    call = json.dumps({"name": "choose_square", "arguments": {"square": square}})
    return {"call": call, "outcome": outcome, "board": "X.O/.../..."}


def test_a_board_is_drawn_with_its_marks_and_the_chosen_square() -> None:
    drawing = ElementTree.fromstring(picture(RECORD, row(5)))
    texts = [element.text for element in drawing.iter("text")]
    assert texts == ["X", "2", "O", "4", "X", "6", "7", "8", "9"]  # X now on 5, free squares numbered
    assert len(list(drawing.iter("circle"))) == 1
    assert drawing.get("aria-label") == (
        "Board row by row: X free O, then free free free, then free free free; square 5 chosen: optimal"
    )


def test_a_taken_square_keeps_its_mark_under_a_dashed_ring() -> None:
    drawing = picture(RECORD, row(3, "occupied"))
    assert [e.text for e in ElementTree.fromstring(drawing).iter("text")][2] == "O"
    assert "stroke-dasharray" in drawing and "stroke-dasharray" not in picture(RECORD, row(5))


@pytest.mark.parametrize("call", [None, "", "nonsense", "[]", '{"arguments":{}}', '{"arguments":{"square":true}}'])
def test_a_reply_without_a_valid_call_is_drawn_without_a_move(call: str | None) -> None:
    reply = {"call": call, "outcome": "no_call"}
    assert chosen_square(reply) is None
    assert "circle" not in picture(RECORD, reply) and "no square chosen" in picture(RECORD, reply)


def test_what_a_picture_quotes_is_escaped() -> None:
    assert "<script" not in picture(RECORD, row(5, '"><script>'))
    assert "<script" not in as_text(RECORD, {"board": "<script>", "call": "<script>"})


def test_a_task_without_pictures_is_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_task").mkdir()
    (tmp_path / "plain_task/__init__.py").write_text("TASK = None\n")
    monkeypatch.setattr(tuneloop.tasks, "__path__", [*tuneloop.tasks.__path__, str(tmp_path)])
    found = task_pictures("plain_task")
    assert found.picture is as_text and found.words["records"] == "records" and not found.landmarks
    assert "X.O/.../..." in found.picture(RECORD, row(5))


def test_the_tictactoe_pictures_are_found_by_the_tasks_name() -> None:
    found = task_pictures("tictactoe")
    assert found.picture is picture and found.words["records"] == "boards"
    # The end of the tutorial's reward curve, from the design: below a player who knows the free squares.
    assert list(found.landmarks.values()) == [0.4]
