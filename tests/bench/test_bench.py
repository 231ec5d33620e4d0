"""The benchmarks run, refuse sizes that make no sense, and count what they say they count."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmarks' package, which is not installed with the library."""
    monkeypatch.syspath_prepend(str(root))
    import bench.cost_growth
    import bench.floor
    import bench.gspo_step
    import bench.workload

    return bench


def test_a_step_of_tuneloop_is_measured(bench: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = ("--boards", 2, "--replies", 2, "--new-tokens", 4, "--steps", 1, "--rounds", 1, "--threads", 1)
    found = tmp_path / "found.json"
    status = bench.gspo_step.main([str(word) for word in ("--only", "tuneloop", *sizes, "--json", found)])
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "whole step (s)" in said.out
    numbers = json.loads(found.read_text(encoding="utf-8"))
    (one,) = numbers["runs"]
    assert len(one["steps"]) == 1  # the warm-up step is not counted
    assert 0 < one["steps"][0]["rollout"] < 60 and 0 < one["steps"][0]["train"] < 60
    assert 100 < one["start_mib"] <= one["peak_mib"]
    assert all(90 <= length <= 110 for length in numbers["policy"]["prompt_tokens"])  # "about 100"
    # The step cannot be faster than the processor multiplies; the rate is measured, hence the margin.
    assert numbers["summary"]["tuneloop"]["times_floor"] > 0.8


@pytest.mark.slow
def test_the_growth_of_costs_is_measured_and_drawn(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table, image = tmp_path / "growth.csv", tmp_path / "growth.png"
    options = ("--sweeps", "replies", "--most", 16, "--repeats", 1, "--threads", 1, "--csv", table, "--image", image)
    status = bench.cost_growth.main(list(map(str, options)))
    assert status == 0, capsys.readouterr().err
    with open(table, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["phase"], row["replies"], row["tokens"]) for row in rows] == [
        ("rollout", "16", "32"),
        ("update", "16", "32"),
    ]
    assert all(float(row["seconds"]) > 0 and float(row["peak_mib"]) >= float(row["loaded_mib"]) for row in rows)
    assert image.read_bytes().startswith(b"\x89PNG")


def test_the_picture_is_drawn_again_from_the_numbers(bench: ModuleType, tmp_path: Path) -> None:
    growth = bench.cost_growth
    table, image, again = tmp_path / "growth.csv", tmp_path / "one.png", tmp_path / "two.png"
    lines = [
        f"{sweep},{phase},{boards},{boards * replies},{tokens},{boards * replies * tokens / 1e4},600,500"
        for sweep, points in growth.SWEEPS.items()
        for boards, replies, tokens in points
        for phase in growth.PHASES
    ]
    header = "sweep,phase,boards,replies,tokens,seconds,peak_mib,loaded_mib"
    table.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    for path in (image, again):
        assert growth.main(["--redraw", "--csv", str(table), "--image", str(path)]) == 0
    assert image.read_bytes().startswith(b"\x89PNG")
    assert image.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--replies", "1"], "--replies 1: a group needs at least 2 replies"),
        (["--boards", "3"], "--boards 3: must be a multiple of 2"),
    ],
)
def test_a_step_that_cannot_be_is_refused_before_anything_runs(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert bench.gspo_step.main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--threads", "two"], ["--shape", "nan"], ["--rounds", "-1"]])
def test_an_argument_of_the_wrong_kind_is_named(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        bench.gspo_step.main(arguments)
    assert exit.value.code == 2
    said = capsys.readouterr().err
    assert arguments[0] in said and arguments[1] in said


@pytest.mark.parametrize("content", [None, "", "a,b\n1,2\n"], ids=["missing", "empty", "another table"])
def test_numbers_that_are_not_there_are_not_drawn(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None
) -> None:
    table, image = tmp_path / "none.csv", tmp_path / "none.png"
    if content is not None:
        table.write_text(content, encoding="utf-8")
    assert bench.cost_growth.main(["--redraw", "--csv", str(table), "--image", str(image)]) == 2
    assert str(table) in capsys.readouterr().err
    assert not image.exists()


def test_a_sweep_without_a_point_is_refused(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.cost_growth.main(["--sweeps", "replies", "--most", "1"]) == 2
    assert "--most 1" in capsys.readouterr().err


def test_a_child_that_fails_says_why(bench: ModuleType, tmp_path: Path) -> None:
    from tuneloop.errors import UserError

    with pytest.raises(UserError, match=r"(?s)exit status 1.*No module named bench\.nothing"):
        bench.workload.run_child("bench.nothing", [tmp_path], 1)


def test_arithmetic_is_counted_as_by_hand(bench: ModuleType) -> None:
    """2 boards of 5 and 6 prompt tokens, 4 of them shared; 3 replies a board of 2 tokens; 2 updates."""
    policy = {"prompt_tokens": [5, 6], "shared_prefix": 4, "body_parameters": 10, "head_parameters": 100}
    ours = bench.floor.shared_prompts(policy, 3, 2, 2)
    # Rollout: 4 shared + 1 + 2 own prompt tokens, and the first token of each of 6 replies; 12 tokens drawn.
    assert ours.rollout == 2 * (10 * (4 + 1 + 2 + 6) + 100 * 12)
    # Each of the 2 updates computes the shared tokens once, and its own group's 6 reply tokens.
    assert ours.train == 6 * (10 * (4 + 1 + 6) + 100 * 6 + 10 * (4 + 2 + 6) + 100 * 6)
    theirs = bench.floor.repeated_prompts(policy, 3, 2, 2)
    assert theirs.rollout == 2 * (10 * (3 * 5 + 3 * 6 + 6) + 100 * 12)
    # Forward alone for the old log-probabilities, then forward and backward, over every whole sequence.
    assert theirs.train == (2 + 6) * (10 * (3 * 7 + 3 * 8) + 100 * 12)
    assert bench.floor.repeated_prompts(policy, 3, 2, 1).train == 6 * (10 * (3 * 7 + 3 * 8) + 100 * 12)


def test_the_ratio_says_how_many_times_tuneloops_number_the_peers_is(bench: ModuleType) -> None:
    keys = [key for _, key, _ in bench.gspo_step.ROWS]
    found = {
        "workload": {
            "shape": "nano",
            "boards": 8,
            "replies": 8,
            "new_tokens": 32,
            "updates": 2,
            "threads": 2,
            "device": "cpu",
        }
        | {"warm_up": "full"},
        "policy": {"parameters": 1, "prompt_tokens": [100], "shared_prefix": 70},
        "gflops": 100.0,
        "summary": {
            "trl": dict.fromkeys(keys, 3.0) | {"steps": 1, "version": "1"},
            "tuneloop": dict.fromkeys(keys, 2.0) | {"steps": 1, "version": ""},
        },
    }
    rows = bench.gspo_step.table(found)[-len(keys) :]
    assert all(row.endswith("1.50×") for row in rows)
