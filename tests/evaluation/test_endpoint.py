"""`tuneloop evaluate` against a real HTTP server that answers as endpoints do, well and badly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from evaluation.fake_endpoint import Answer, Endpoint, call, completion, first_free, free_square
from serving.running import serve

from tuneloop.artifacts import read_json, read_jsonl, write_jsonl
from tuneloop.cli import main
from tuneloop.evaluation import endpoint_client
from tuneloop.evaluation.endpoint_client import KeptAnswers, endpoint_url
from tuneloop.evaluation.evaluate import summarise
from tuneloop.evaluation.games import summarise_games
from tuneloop.evaluation.measure import measure
from tuneloop.params import Params
from tuneloop.tasks import load_task
from tuneloop.toolcalls import ToolCall, load_dialect

TASK = load_task("tictactoe")
COLUMNS = "id,board,stratum,cluster,decoding,sample,prompt_hash,text,call,outcome,reward,length,finish_reason"
"""The columns of a policy's reply table (test_evaluate.py)."""

KEY = "sk-secret-0123456789"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever, args=(0.01,))
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    thread.join()
    endpoint.server.server_close()


@pytest.fixture
def project(
    tmp_path: Path, write_params: Callable[..., None], tiny_records: tuple[list, list], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with params.yaml and held-out records, and no wait before a second attempt."""
    write_params(tmp_path)
    write_jsonl(tmp_path / "data/boards/heldout.jsonl", tiny_records[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(endpoint_client, "FIRST_PAUSE", 0.001)
    return tmp_path


@pytest.fixture
def evaluate(endpoint: Endpoint, project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple]:
    """Runs the command in this process: (exit status, standard output, standard error)."""

    def run(*more: str) -> tuple[int, str, str]:
        status = main(["evaluate", "--endpoint", endpoint.url, "--model", "some/model", "--out", "out", *more])
        return status, *capsys.readouterr()

    return run


def test_the_records_are_asked_and_scored_as_those_of_a_policy(
    evaluate: Callable[..., tuple], endpoint: Endpoint, tiny_records: tuple[list, list]
) -> None:
    status, out, err = evaluate()
    assert (status, err) == (0, "")
    rows, heldout = read_jsonl("out/replies.jsonl"), tiny_records[1]
    assert all(",".join(row) == COLUMNS for row in rows)
    greedy = [(record["id"], "greedy", 0) for record in heldout]
    sampled = [(record["id"], "sampled", i) for record in heldout for i in (0, 1)]
    assert [(row["id"], row["decoding"], row["sample"]) for row in rows] == greedy + sampled
    records = {record["id"]: record for record in heldout}
    for row in rows:
        square = row["board"].replace("/", "").index(".") + 1
        outcome = TASK.score(records[row["id"]], ToolCall("choose_square", {"square": square}))
        assert (row["outcome"], row["reward"]) == (outcome.name, outcome.reward)
        assert json.loads(row["call"])["arguments"] == {"square": square}
        assert (row["length"], row["finish_reason"]) == (12, "stop")

    metrics, games = read_json("out/metrics.json"), read_jsonl("out/games.jsonl")
    assert metrics["greedy"] == summarise(rows[: len(heldout)], TASK)
    assert metrics["sampled"] == summarise(rows[len(heldout) :], TASK)
    assert metrics["games"] == summarise_games(games)
    assert len(games) == 2 * 3 * 2, "two games for every side and opponent"
    assert not any(row["result"] == "forfeit" for row in games), "a free square is always legal"
    assert f"{metrics['sampled']['reward']:+.3f}" in out
    assert "any free square" in out and "as X against minimax" in out


def test_a_request_holds_the_tasks_messages_tools_and_limits_and_no_key(
    evaluate: Callable[..., tuple],
    endpoint: Endpoint,
    tiny_records: tuple[list, list],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert evaluate("--games", "0", "--limit", "1")[0] == 0
    record = tiny_records[1][0]
    shared = {"model": "some/model", "messages": TASK.messages(record), "tools": TASK.tools, "max_tokens": 40}
    greedy, *sampled = sorted(endpoint.bodies, key=lambda body: body["temperature"])
    assert greedy == shared | {"temperature": 0.0}
    seeds = [body.pop("seed") for body in sampled]
    assert sampled == [shared | {"temperature": 1.0, "top_p": 1.0}] * 2
    assert len(set(seeds)) == 2
    assert endpoint.keys == {"Bearer none"}, "a key that was not named for this endpoint is not sent to it"

    endpoint.bodies.clear()
    assert evaluate("--games", "0", "--limit", "1")[0] == 0
    assert {body.get("seed") for body in endpoint.bodies} == {*seeds, None}, "every run draws the same seeds"
    endpoint.bodies.clear()
    more = ("--no-seed", "--token-limit", "max_completion_tokens", "--max-tokens", "99", "--extra", '{"top_p":0.5}')
    assert evaluate("--games", "0", "--limit", "1", *more)[0] == 0
    assert all(body["max_completion_tokens"] == 99 and body["top_p"] == 0.5 for body in endpoint.bodies)
    assert not any(body.keys() & {"seed", "max_tokens"} for body in endpoint.bodies)


def test_halves_of_characters_and_missing_counts_go_through_the_files(
    evaluate: Callable[..., tuple], endpoint: Endpoint
) -> None:
    endpoint.answer = lambda body, n: (200, completion(content="a\ud800\u2028b", tokens=None), {})
    status, _, _ = evaluate("--games", "1")
    assert status == 0
    rows = read_jsonl("out/replies.jsonl")
    assert {(row["text"], row["outcome"], row["length"]) for row in rows} == {("a?\u2028b", "no_call", None)}
    assert read_json("out/metrics.json")["sampled"]["length"] == {"all": None, "finished": None, "truncated": None}
    assert {row["fault"] for row in read_jsonl("out/games.jsonl")} == {"no_call"}


def test_arguments_that_are_no_text_are_told_apart_from_the_models_faults(
    evaluate: Callable[..., tuple], endpoint: Endpoint
) -> None:
    parsed = {"function": {"name": "choose_square", "arguments": {"square": 5}}}
    endpoint.answer = lambda body, n: (200, completion(parsed), {})
    _, out, _ = evaluate("--games", "0", "--limit", "2")
    assert "6 calls had arguments that are not JSON text" in out, "2 records, one greedy and two sampled replies each"


def test_tools_go_into_the_system_message_for_an_endpoint_without_tools(
    evaluate: Callable[..., tuple], endpoint: Endpoint
) -> None:
    hermes = load_dialect("hermes")

    def answer(body: dict[str, Any], _number: int) -> Answer:
        written = hermes.render(ToolCall("choose_square", {"square": free_square(body)}))
        return 200, completion(content=f"<think>{written}</think>{written}"), {}

    endpoint.answer = answer
    assert evaluate("--dialect", "hermes", "--tools-in-system", "--games", "0")[0] == 0
    assert all("tools" not in body and "choose_square" in body["messages"][0]["content"] for body in endpoint.bodies)
    assert read_json("out/metrics.json")["greedy"]["legal"] == 1.0
    assert "--dialect" in evaluate("--tools-in-system")[2]


def drop(body: dict[str, Any], _number: int) -> Answer:
    raise ConnectionAbortedError  # the handler ends and the connection with it


def hang(body: dict[str, Any], _number: int) -> Answer:
    time.sleep(1.6)
    return first_free(body, 0)


@pytest.mark.parametrize(
    "bad",
    [
        lambda body, n: (429, {"error": {"message": "slow down"}}, {"retry-after": "0.01"}),
        lambda body, n: (503, "<html>busy</html>", {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        lambda body, n: (200, {"error": {"message": "upstream fell over"}}, {}),
        lambda body, n: (200, json.dumps(completion(call(1))), {"content-length": "9999", "connection": "close"}),
        drop,
        hang,
    ],
    ids=["429", "503", "an error inside 200", "half a body", "dropped", "hanging"],
)
def test_a_request_that_fails_for_now_is_asked_again_and_counted(
    evaluate: Callable[..., tuple], endpoint: Endpoint, bad: Callable[[dict, int], Answer]
) -> None:
    endpoint.answer = lambda body, n: bad(body, n) if n in (1, 4) else first_free(body, n)
    # Only the hanging one waits for the end of that time; the others get more of it than a busy machine needs.
    status, _, err = evaluate("--limit", "2", "--games", "0", "--timeout", "0.8" if bad is hang else "60")
    assert (status, err) == (0, "")
    assert read_json("out/metrics.json")["greedy"]["legal"] == 1.0
    assert read_json("out/timings.json")["requests"] == {"asked": 6, "kept": 0, "retries": 2}
    assert len(endpoint.bodies) == 8


def test_no_more_requests_than_asked_for_are_open_at_once(evaluate: Callable[..., tuple], endpoint: Endpoint) -> None:
    def slow(body: dict[str, Any], number: int) -> Answer:
        time.sleep(0.02)
        return first_free(body, number)

    endpoint.answer = slow
    assert evaluate("--parallel", "3", "--games", "0")[0] == 0
    assert endpoint.most_open == 3


def test_an_endpoint_that_dies_stops_the_run_and_a_second_start_asks_only_what_is_missing(
    evaluate: Callable[..., tuple], endpoint: Endpoint, tiny_records: tuple[list, list]
) -> None:
    assert evaluate()[0] == 0
    whole, total = Path("out/replies.jsonl").read_bytes(), len(endpoint.bodies)
    Path("out/replies.jsonl").unlink()
    endpoint.bodies.clear()

    endpoint.answer = lambda body, n: first_free(body, n) if n <= 20 else (500, "out of memory", {})
    status, _, err = evaluate("--retries", "2", "--parallel", "4")
    assert status == 2
    assert err.count("\n") == 1 and "answered 500: out of memory after 3 attempts" in err
    assert re.search(r"record (generated-\d+):", err)[1] in {record["id"] for record in tiny_records[1]}
    assert not Path("out/replies.jsonl").exists(), "tables are written whole or not at all"

    with open("out/.answers.jsonl", "ab") as file:
        file.write(b'{"key": "ab')  # as a process leaves it that was killed while it wrote
    endpoint.bodies.clear()
    endpoint.answer = first_free
    status, out, _ = evaluate()
    assert status == 0
    assert len(endpoint.bodies) == total - 20
    assert "20 answers kept from before" in out
    assert Path("out/replies.jsonl").read_bytes() == whole
    assert not Path("out/.answers.jsonl").exists()


def test_kept_answers_are_never_those_to_another_question(evaluate: Callable[..., tuple], endpoint: Endpoint) -> None:
    few = ("--games", "0", "--limit", "2", "--retries", "0", "--parallel", "1")
    endpoint.answer = lambda body, n: first_free(body, n) if n <= 5 else (500, "", {})
    assert evaluate(*few)[0] == 2
    endpoint.answer = first_free
    for changed in (["--model", "other"], ["--max-tokens", "9"], ["--extra", '{"top_p":0.9}']):
        kept = Path("out/.answers.jsonl").read_bytes()
        endpoint.bodies.clear()
        assert "0 answers kept" in evaluate(*few, *changed)[1]
        assert len(endpoint.bodies) == 6
        Path("out/.answers.jsonl").write_bytes(kept)
    assert "5 answers kept" in evaluate(*few)[1]


def test_two_evaluations_do_not_write_into_one_folder(evaluate: Callable[..., tuple], endpoint: Endpoint) -> None:
    other = KeptAnswers(Path("out/.answers.jsonl"), "http://another.host/v1")
    status, _, err = evaluate()
    assert status == 2 and "another evaluation" in err
    assert not endpoint.bodies
    other.close()
    assert evaluate("--games", "0", "--limit", "1")[0] == 0


def test_control_c_keeps_what_was_answered(
    endpoint: Endpoint, project: Path, environment: dict[str, str], tiny_records: tuple[list, list]
) -> None:
    command = [sys.executable, "-m", "tuneloop.cli", "evaluate", "--endpoint", endpoint.url, "--model", "m"]
    enough, let_go = threading.Event(), threading.Event()

    def answer(body: dict[str, Any], number: int) -> Answer:
        if number > 10:
            enough.set()
            let_go.wait(20)
        return first_free(body, number)

    endpoint.answer = answer
    process = subprocess.Popen(
        [*command, "--games", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the suite in a shell's background has it ignore this signal, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert enough.wait(60)
    deadline = time.monotonic() + 20
    file = project / "data/endpoints/m/.answers.jsonl"
    while file.read_bytes().count(b"\n") < 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    let_go.set()
    assert process.returncode == 130
    assert "Traceback" not in err and "the same command goes on from there" in err
    endpoint.bodies.clear()
    endpoint.answer = first_free
    assert main([*command[3:], "--games", "0"]) == 0
    assert len(endpoint.bodies) == 3 * len(tiny_records[1]) - 10


@pytest.mark.parametrize(
    ("status", "said", "hint"),
    [
        (400, "this model does not support tools", "--tools-in-system"),
        (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "--token-limit"),
        (422, "unknown field: seed", "--no-seed"),
        (401, f"Incorrect API key provided: {KEY}", "--key-env"),
        (404, "the model `some/model` does not exist", "does not exist"),
    ],
)
def test_a_refusal_is_told_once_with_what_to_do_and_without_the_key(
    evaluate: Callable[..., tuple],
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    said: str,
    hint: str,
) -> None:
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    endpoint.answer = lambda body, n: (status, {"error": {"message": said, "type": "invalid_request_error"}}, {})
    ended, out, err = evaluate("--key-env", "ENDPOINT_KEY", "--parallel", "1")
    assert ended == 2 and err.count("\n") == 1
    assert f"answered {status}: {said.replace(KEY, '[key]')}" in err and hint in err
    assert len(endpoint.bodies) == 1, "a refusal is not asked again"
    assert endpoint.keys == {f"Bearer {KEY}"}
    assert KEY not in out + err


def test_the_key_is_in_no_file(
    evaluate: Callable[..., tuple], project: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    endpoint.answer = lambda body, n: first_free(body, n) if n <= 5 else (500, KEY, {})
    assert evaluate("--key-env", "ENDPOINT_KEY", "--retries", "0")[0] == 2
    before = {path.name for path in (project / "out").iterdir()}
    endpoint.answer = first_free
    _, out, err = evaluate("--key-env", "ENDPOINT_KEY")
    assert before == {".answers.jsonl"}
    assert KEY not in out + err
    files = [path for path in project.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_the_table_pairs_the_same_records_and_says_where_it_cannot(
    evaluate: Callable[..., tuple], endpoint: Endpoint, tiny_records: tuple[list, list]
) -> None:
    endpoint.answer = lambda body, n: (200, completion(content="I pass."), {})
    assert evaluate("--out", "data/baseline")[0] == 0
    endpoint.answer = first_free
    out = evaluate("--limit", "5")[1]
    metrics = read_json("out/metrics.json")["sampled"]
    lines = {line.split("  ")[0]: line.split() for line in reversed(out.splitlines()) if line}
    assert lines["sampled"][1:] == ["some/model", "baseline"]
    assert metrics["replies"] == 10, "5 records, 2 samples each"
    sampled = out[out.index("\nsampled ") :]
    assert re.search(r"^replies +10 +10$", sampled, re.MULTILINE), "the baseline's replies to the same 5 records"
    assert re.search(rf"^reward +{re.escape(format(metrics['reward'], '+.3f'))} +-1\.000$", sampled, re.MULTILINE)
    # Every reply of that baseline is no call: −1 each.
    assert f"minus that of baseline: {metrics['reward'] + 1:+.3f}" in out
    assert "over all records" not in out

    Path("data/baseline/replies.jsonl").unlink()
    out = evaluate("--limit", "5")[1]
    assert "baseline *" in out and "* over all records of that evaluation" in out
    assert "minus that of" not in out


def test_a_broken_baseline_is_refused_before_anything_is_asked(
    evaluate: Callable[..., tuple], endpoint: Endpoint
) -> None:
    Path("data/baseline").mkdir()
    Path("data/baseline/metrics.json").write_text("{}")
    status, _, err = evaluate()
    assert status == 2 and "data/baseline/metrics.json" in err
    assert not endpoint.bodies


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--key-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["--endpoint", "http://me:hunter2@host/v1"], "no name, password"),
        (["--endpoint", "127.0.0.1:8000"], "base URL"),
        (["--endpoint", "http://[::1"], "base URL"),
        (["--limit", "0"], "--limit"),
        (["--samples", "none"], "--samples"),
        (["--timeout", "nan"], "--timeout"),
        (["--extra", "[]"], "--extra"),
        (["--extra", '{"a": NaN}'], "--extra"),
        (["--extra", '{"messages": []}'], "messages"),
        (["--dialect", "xml"], "hermes"),
        (["--dialect", "hermes", "--reasoning", "a"], "--reasoning"),
    ],
)
def test_bad_arguments_are_one_line_and_ask_nothing(
    evaluate: Callable[..., tuple], endpoint: Endpoint, arguments: list[str], says: str
) -> None:
    status, out, err = evaluate(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("tuneloop: error: ") and err.count("\n") == 1 and says in err
    assert "hunter2" not in err
    assert not endpoint.bodies


def test_an_endpoint_that_is_not_there_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Port 9 ("discard") of this machine: nothing listens there.
    command = ["evaluate", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--retries", "1"]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert "cannot be reached" in err and "after 2 attempts" in err and err.count("\n") == 1


def test_the_base_url_may_be_written_with_the_path_of_the_call() -> None:
    assert endpoint_url("https://host/v1/chat/completions/") == "https://host/v1"


def test_a_policy_behind_tuneloop_serve_earns_what_it_earns_directly(
    workspace: Path, tiny_params: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedily, in outcome, call, length and whole games. (The server hands over valid calls parsed and everything
    else as text: the policy's own dialect tells the faults in it apart.)"""
    monkeypatch.chdir(workspace)
    measure(tiny_params(), Path("data/policy/model"), Path("data/retest"), rerun=False)
    with serve(Path("data/policy/model")) as url:
        command = ["evaluate", "--endpoint", url, "--model", "nano", "--out", "out"]
        assert main([*command, "--dialect", "hermes"]) == 0
    columns = ("id", "board", "outcome", "reward", "call", "length", "finish_reason")
    direct, through = (
        [
            {column: row[column] for column in columns}
            for row in read_jsonl(f"{folder}/replies.jsonl")
            if row["decoding"] == "greedy"
        ]
        for folder in ("data/retest", "out")
    )
    assert through == direct
    assert len({row["outcome"] for row in direct}) > 1
    assert Path("out/games.jsonl").read_bytes() == Path("data/retest/games.jsonl").read_bytes()
