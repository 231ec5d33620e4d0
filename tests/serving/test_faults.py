"""What goes wrong for one client: the answer it gets, and that the server goes on for the others."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from serving.running import serve

from tuneloop.cli import main
from tuneloop.errors import UserError
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.serving.server import require_key

KEY = "secret"


class FragileEngine:
    """Computes as soon as the gate is open, except what has seed 13, on which it raises. `seeds`: what it was given."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.seeds: list[int] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        self.seeds += [seed for group in seeds for seed in group]
        assert self.gate.wait(20)
        if any(13 in group for group in seeds):
            raise RuntimeError("a kernel failed")
        return [[Reply([3, 4], [-1.0, -2.0], "length") for _ in group] for group in seeds]

    def weights_changed(self) -> None: ...


@pytest.fixture(scope="module")
def engine() -> FragileEngine:
    return FragileEngine()


@pytest.fixture(scope="module")
def client(tiny_policy: Path, engine: FragileEngine) -> Iterator[OpenAI]:
    """Of a server with a key and a queue for two."""
    with serve(tiny_policy, engine, key=KEY, capacity=2) as url:
        yield OpenAI(base_url=url, api_key=KEY, max_retries=0)


@pytest.fixture(autouse=True)
def goes_on(client: OpenAI, engine: FragileEngine, asked: dict[str, Any]) -> Iterator[None]:
    """After every test the same server answers the next client."""
    yield
    engine.gate.set()
    assert client.chat.completions.create(**asked, seed=1).choices[0].finish_reason == "length"


def post(client: OpenAI, **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}".encode(), "content-type": "application/json"} | options.pop("head", {})
    return httpx.post(f"{client.base_url}chat/completions", headers=headers, **options)


@pytest.mark.parametrize("given", [b"", b"Bearer wrong", b"secret", b"Bearer secretx", b"Bearer \xff"])
def test_a_wrong_key_is_turned_away_before_anything_is_read(client: OpenAI, given: bytes) -> None:
    answer = post(client, content=b"{", head={"authorization": given})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{client.base_url}models").status_code == 401


def test_an_engine_fault_is_a_500_for_the_request_that_caused_it(client: OpenAI, asked: dict[str, Any]) -> None:
    with pytest.raises(openai.InternalServerError, match="a kernel failed") as failed:
        client.chat.completions.create(**asked, seed=13)
    assert failed.value.status_code == 500


def test_another_model_is_not_found(client: OpenAI, asked: dict[str, Any]) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(**(asked | {"model": "gpt-4o"}))
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        # nano has 2048 positions (tuneloop/policies/nano.py).
        ({"max_tokens": 2048}, "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "1 " * 3000}]}, "context_length_exceeded"),
        ({"top_logprobs": 5, "logprobs": True}, "unsupported_value"),
        ({"n": 1000}, "invalid_value"),
    ],
)
def test_a_bad_request_says_which_parameter_in_openais_shape(
    client: OpenAI, asked: dict[str, Any], changes: dict[str, Any], code: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**(asked | changes))
    assert refused.value.code == code
    assert refused.value.body.keys() == {"message", "type", "param", "code"}
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"content": b"{"}, 400),
        ({"content": b"{}"}, 400),
        ({"content": b"{}", "head": {"content-type": "text/plain"}}, 400),
        ({"content": b" " * (5 * 2**20)}, 400),
    ],
)
def test_a_body_that_is_no_request_is_a_bad_request(client: OpenAI, options: dict[str, Any], status: int) -> None:
    answer = post(client, **options)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


def test_other_routes_and_methods_are_refused_in_the_same_shape(client: OpenAI) -> None:
    assert httpx.post(f"{client.base_url}completions").json()["error"]["type"] == "invalid_request_error"
    assert httpx.get(f"{client.base_url}chat/completions").status_code == 405


def test_a_full_queue_answers_429_and_clients_that_leave_free_their_places(
    client: OpenAI, engine: FragileEngine, asked: dict[str, Any]
) -> None:
    engine.gate.clear()
    at_work = len(engine.seeds)
    patient = openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0)

    async def scene() -> None:
        running = asyncio.create_task(patient.chat.completions.create(**asked, seed=100))
        while len(engine.seeds) == at_work:
            await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(patient.chat.completions.create(**asked, seed=101 + i)) for i in range(2)]
        await asyncio.sleep(0.3)
        with pytest.raises(openai.RateLimitError) as refused:
            await patient.chat.completions.create(**asked, seed=200)
        assert refused.value.code == "queue_full"
        waiting[0].cancel()
        await asyncio.sleep(0.3)
        later = asyncio.create_task(patient.chat.completions.create(**asked, seed=300))
        await asyncio.sleep(0.3)
        engine.gate.set()
        for task in (running, waiting[1], later):
            assert (await task).choices[0].finish_reason == "length"
        await patient.close()

    asyncio.run(scene())
    # Who left while waiting, and who was refused, was never computed.
    assert sorted(engine.seeds[at_work:]) == [100, 102, 300]


def test_a_client_that_hangs_up_in_the_middle_of_its_body_is_no_fault(client: OpenAI) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        connection.sendall((head + "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{").encode())
        time.sleep(0.05)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machines_own_address_needs_no_key(host: str) -> None:
    require_key(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "myhost"])
def test_an_address_that_others_reach_needs_a_key(host: str) -> None:
    require_key(host, "k")
    with pytest.raises(UserError, match="--key"):
        require_key(host, None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--host", "0.0.0.0"], "--key"),
        (["--queue", "0"], "--queue 0"),
        ([], "no such folder"),
    ],
)
def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture, more: list[str], said: str) -> None:
    assert main(["serve", "--policy", "/no/such/folder", *more]) == 2
    assert said in capsys.readouterr().err
