"""Claims about what the compare stage writes, on a whole small experiment."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from tuneloop.artifacts import read_json, read_jsonl, write_jsonl
from tuneloop.errors import UserError
from tuneloop.evaluation.comparison import Comparison
from tuneloop.report.page import TEXT_LIMIT, shown_reply

Compare = Callable[..., Comparison]
FIGURES = ["before_after", "entropy", "lengths", "outcomes", "ratio", "reward"]


class Elements(HTMLParser):
    """Tags with their attributes, ids, and the text outside `<style>`."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.unclosed: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.unclosed.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text.append(data)


@pytest.fixture
def copy(experiment: Path, tmp_path: Path) -> Path:
    """The experiment without its training curves, to be changed; drawing them takes most of the time."""
    shutil.copytree(experiment, tmp_path / "data", ignore=shutil.ignore_patterns("history.csv"))
    return tmp_path / "data"


def page(data: Path) -> str:
    return (data / "compare/report.html").read_text(encoding="utf-8")


def stable_files(data: Path) -> dict[str, bytes]:
    out = data / "compare"
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file() and p.suffix != ".html"}


def test_everything_but_the_page_repeats_byte_for_byte(
    compared: Path, make_experiment: Callable[..., Path], compare_in: Compare, tmp_path: Path
) -> None:
    again = make_experiment(tmp_path / "data")
    compare_in(again)
    found = stable_files(again)
    assert sorted(found) == ["metrics.json", *(f"plots/{name}.png" for name in FIGURES), "summary.txt"]
    assert found == stable_files(compared)


def test_the_verdicts_of_three_experiments(
    make_experiment: Callable[..., Path], compare_in: Compare, compared: Path, tmp_path: Path
) -> None:
    assert read_json(compared / "compare/metrics.json")["verdict"]["kind"] == "improved"
    for players, kind in ((("random", "random"), "no change shown"), (("good", "random"), "worse")):
        data = make_experiment(tmp_path / kind / "data", *players)
        (data / "train/history.csv").unlink()
        assert compare_in(data).verdict.kind == kind
        assert f"with nano: {kind}</title>" in page(data)


def test_the_page_is_one_file_that_loads_nothing_and_runs_nothing(compared: Path) -> None:
    elements = Elements(page(compared))
    assert "script" not in {tag for tag, _ in elements.tags}
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in elements.tags}
    for tag, attributes in elements.tags:
        assert not [name for name in attributes if name.startswith("on")], f"event handler on {tag}"
        for name in ("src", "href", "srcset", "data", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/")), f"{tag} loads {attributes[name]}"
    style = page(compared).partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style and "prefers-color-scheme:dark" in style.replace(" ", "")
    policy = next(a["content"] for t, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_hostile_replies_are_text(compared: Path) -> None:
    # The experiment's replies without a call hold markup, a lone surrogate, a NUL and a direction override.
    html = page(compared)
    assert any("<script>" in row["text"] for row in read_jsonl(compared / "retest/replies.jsonl"))
    assert "<script" not in html and "<img src=x" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in html
    assert not re.search("[\x00\u202e\ud800]", html) and "␀" in html and "\\u202e" in html
    assert "<b>not bold</b>" not in html  # the params are quoted, not obeyed


def test_a_long_reply_is_cut_and_says_so() -> None:
    assert shown_reply("a" * (TEXT_LIMIT + 5)) == "a" * TEXT_LIMIT + "\n[… 5 more characters]"
    assert shown_reply("line\n\tnext\r") == "line\n\tnext␍"


def test_the_page_is_well_formed_and_can_be_walked_without_eyes(compared: Path) -> None:
    elements = Elements(page(compared))
    assert not elements.unclosed
    assert dict(elements.tags)["html"]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in elements.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"][1:] for tag, attributes in elements.tags if tag == "a"}
    assert targets <= set(ids)
    headings = [int(tag[1]) for tag, _ in elements.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings)), "a heading level is skipped"
    assert all(len(a.get("alt") or "") > 20 for tag, a in elements.tags if tag == "img")
    assert all(a.get("aria-label") for tag, a in elements.tags if tag == "svg")
    assert [tag for tag, _ in elements.tags].count("table") == [tag for tag, _ in elements.tags].count("caption")


def test_the_page_shows_the_numbers_of_the_metrics(compared: Path) -> None:
    metrics, text = read_json(compared / "compare/metrics.json"), " ".join(Elements(page(compared)).text)
    for name in ("reward", "legal", "optimal"):
        difference = metrics["sampled"][name]["difference"]
        for end in ("value", "low", "high"):
            assert f"{difference[end]:+.3f}".replace("-", "−") in text
    for player in metrics["reference"]:
        assert player in text
    assert metrics["verdict"]["sentence"].partition("; ")[2].partition("(")[0] in text


def test_shares_in_the_metrics_add_up_to_one(compared: Path) -> None:
    for sides in read_json(compared / "compare/metrics.json")["shares"].values():
        for shares in sides.values():
            assert sum(shares.values()) == pytest.approx(1, abs=1e-8)


def test_missing_optional_inputs_leave_their_section_out_with_a_note(copy: Path, compare_in: Compare) -> None:
    shutil.rmtree(copy / "train")
    shutil.rmtree(copy / "checks")
    (copy / "retest/games.jsonl").write_text("")
    for timings in copy.glob("*/timings.json"):
        timings.unlink()
    compare_in(copy)
    html = page(copy)
    for note in (
        "No games were played",
        "There is no training history",
        "The result of the check of boards was not found",
        "No stage left its times",
    ):
        assert note in html
    assert sorted(p.name for p in (copy / "compare/plots").iterdir()) == ["before_after.png"]


def test_a_failed_check_is_open_and_named(copy: Path, compare_in: Compare) -> None:
    text = (copy / "checks/boards.json").read_text().replace('"success": true', '"success": false')
    (copy / "checks/boards.json").write_text(text.replace('"ids": []', '"ids": ["generated-00003"]'))
    compare_in(copy)
    assert "Boards: FAILED" in page(copy) and re.search(r"<td>FAILED</td><td>0: generated-00003", page(copy))


def test_a_missing_table_is_a_user_error_that_names_it(copy: Path, compare_in: Compare) -> None:
    (copy / "retest/replies.jsonl").unlink()
    with pytest.raises(UserError, match=r"retest/replies\.jsonl: cannot be read"):
        compare_in(copy)


def test_replies_to_boards_that_were_not_held_out_are_refused(copy: Path, compare_in: Compare) -> None:
    write_jsonl(copy / "boards/heldout.jsonl", read_jsonl(copy / "boards/heldout.jsonl")[1:])
    with pytest.raises(UserError, match=r"generated-00000 is not in .*heldout\.jsonl"):
        compare_in(copy)


def test_a_policy_whose_name_is_a_path_or_worse_is_quoted(copy: Path, compare_in: Compare) -> None:
    compare_in(copy, policy="/models/<i>mine</i>")
    assert "/models/&lt;i&gt;mine&lt;/i&gt;" in page(copy) and "<i>mine" not in page(copy)
