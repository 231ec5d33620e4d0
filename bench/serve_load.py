"""The server under load: is anything lost or wrong, and what of the engine's throughput reaches the clients?

    python -m bench.serve_load --policy data/train/policy [--clients 64] [--requests 2000] [--n 1 8] [--rounds 3]

1. Mixed: `--clients` clients send `--requests` requests; a quarter is malformed, a quarter is cancelled by the client
   after a random time. Every other one must get the very tokens that the engine gives for its prompt and seed.
2. Throughput, for each n, in replies a second, on the same prompts, seeds and limit:
   *engine alone*: `Engine.generate` in calls of as many prompts as there are clients, ids ready;
   *steps alone*: the engine token by token in this process, as many requests in flight as there are clients, ids ready;
   *served*: the same clients through HTTP. The three take turns, `--rounds` times, so that a busy machine slows
   each of them; medians are compared.
3. What the clients cost: their processor time a request, and against a handler that answers at once.

The server is a process of its own, the clients are one other: they share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tuneloop import machine
from tuneloop.policies.policy import Policy, load_policy
from tuneloop.rollout.contract import Engine, Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.tasks import load_task

TASK = load_task("tictactoe")
LIMIT = 32
MALFORMED = [
    (b"{", 400),
    (b'{"model": "nano", "messages": []}', 400),
    (b'{"model": "nano", "messages": [{"role": "user", "content": "x"}], "n": 0}', 400),
    (b'{"model": "nano", "messages": [{"role": "user", "content": "x"}], "max_tokens": 100000}', 400),
    (b'{"model": "other", "messages": [{"role": "user", "content": "x"}]}', 404),
]


EMPTY = """
import asyncio
ANSWER = b"HTTP/1.1 200 OK\\r\\ncontent-length: 500\\r\\n\\r\\n" + b" " * 500

async def answer(reader, writer):
    while line := await reader.readline():
        if line.lower().startswith(b"content-length"):
            size = int(line.split(b":")[1])
        if line == b"\\r\\n":
            await reader.readexactly(size)
            writer.write(ANSWER)

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Load:
    """What came of a load. `counts`: right, wrong, refused as it must be, cancelled, lost; `seconds`."""

    counts: Counter[str]
    seconds: float


def body(record: Any, seed: int, n: int = 1, **more: Any) -> dict[str, Any]:
    """A good request. Temperature and top-p 1, which is what the engine alone is asked for."""
    settings = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": LIMIT, "seed": seed, "n": n}
    return {"model": "nano", "messages": TASK.messages(record), "tools": TASK.tools, **settings, **more}


def expected(policy: Policy, engine: Engine, records: Sequence[Any]) -> list[list[int]]:
    """The engine's tokens for record i and seed i."""
    prompts = [policy.prompt_ids(TASK.messages(record), TASK.tools) for record in records]
    groups = engine.generate(prompts, [[i] for i in range(len(records))], Sampling(LIMIT))
    return [group[0].ids for group in groups]


async def mixed(url: str, records: Sequence[Any], truth: Sequence[Sequence[int]], clients: int) -> Load:
    """Request i is good, malformed or cancelled by i mod 4."""
    draw, counts = random.Random(1), Counter()
    patience = [draw.uniform(0, 0.1) for _ in records]

    async def one(session: aiohttp.ClientSession, i: int) -> str:
        if i % 4 == 1:
            content, status = MALFORMED[i // 4 % len(MALFORMED)]
            answer = await _post(session, url, content)
            return "refused" if answer[0] == status and "error" in answer[1] else "wrong"
        asking = _post(session, url, json.dumps(body(records[i], i, tuneloop={"tokens": True})).encode())
        if i % 4 == 3:
            try:
                await asyncio.wait_for(asking, patience[i])
            except TimeoutError:
                return "cancelled"
            return "answered before it was cancelled"
        status, answer = await asking
        return "right" if status == 200 and answer["choices"][0]["tuneloop"]["token_ids"] == truth[i] else "wrong"

    return await _all(len(records), clients, one, counts)


async def _all(requests: int, clients: int, one: Any, counts: Counter[str]) -> Load:
    """Every client takes the next request as soon as its last one is done."""
    todo = iter(range(requests))
    started = time.perf_counter()

    async def client(session: aiohttp.ClientSession) -> None:
        for i in todo:
            try:
                counts[await one(session, i)] += 1
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                counts[f"lost ({type(error).__name__})"] += 1

    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return Load(counts, time.perf_counter() - started)


async def _post(session: aiohttp.ClientSession, url: str, content: bytes) -> tuple[int, Any]:
    headers = {"content-type": "application/json"}
    async with session.post(f"{url}/chat/completions", data=content, headers=headers) as response:
        return response.status, await response.json()


class Throughput:
    """One set of good requests, and the ways to have it computed."""

    def __init__(self, policy: Policy, engine: TorchEngine, records: Sequence[Any], n: int, clients: int, limit: int):
        self.engine, self.clients, self.replies = engine, clients, len(records) * n
        self.prompts = [policy.prompt_ids(TASK.messages(record), TASK.tools) for record in records]
        self.seeds = [[1000 * i + k for k in range(n)] for i in range(len(records))]
        self.sampling = Sampling(limit)
        self.bodies = [json.dumps(body(r, i, n, max_tokens=limit)).encode() for i, r in enumerate(records)]

    def engine_alone(self) -> float:
        """Replies a second."""
        started = time.perf_counter()
        for i in range(0, len(self.prompts), self.clients):
            part = slice(i, i + self.clients)
            self.engine.generate(self.prompts[part], self.seeds[part], self.sampling)
        return self.replies / (time.perf_counter() - started)

    def steps_alone(self) -> float:
        started = time.perf_counter()
        steps, todo = self.engine.stepping(), iter(zip(self.prompts, self.seeds))
        left: dict[int, int] = {}

        def enter() -> None:
            for prompt, seeds in itertools.islice(todo, self.clients - len(left)):
                left[steps.admit(prompt, seeds, self.sampling)] = len(seeds)

        enter()
        while left:
            for token in steps.step():
                left[token.ticket] -= token.finish_reason is not None
            for ticket in [ticket for ticket, count in left.items() if not count]:
                del left[ticket]
            enter()
        return self.replies / (time.perf_counter() - started)

    def served(self, url: str) -> tuple[float, float]:
        """Replies a second, and the clients' own processor time (s) a request."""
        started, own = time.perf_counter(), time.process_time()
        right = asyncio.run(lean(url, self.bodies, self.clients))
        if right != len(self.bodies):
            raise RuntimeError(f"{len(self.bodies) - right} of {len(self.bodies)} good requests were not answered")
        spent = (time.process_time() - own) / len(self.bodies)
        return self.replies / (time.perf_counter() - started), spent


async def lean(url: str, bodies: Sequence[bytes], clients: int) -> int:
    """How many requests were answered with 200. HTTP by hand: a client library takes longer than the server."""
    address = urllib.parse.urlsplit(url)
    todo, right = iter(bodies), 0
    head = f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

    async def client() -> None:
        nonlocal right
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for content in todo:
            writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            answer = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"content-length: *(\d+)", answer, re.IGNORECASE)[1]))
            right += answer.startswith(b"HTTP/1.1 200")
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return right


@contextmanager
def empty_handler() -> Iterator[str]:
    """A server that answers every request at once with a text as long as an answer."""
    server = subprocess.Popen([sys.executable, "-c", EMPTY], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def serving(folder: str, threads: int) -> Iterator[str]:
    options = ["--policy", folder, "--port", "0", "--name", "nano", "--threads", str(threads)]
    command = [sys.executable, "-m", "tuneloop.cli", "serve", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"http://\S+", server.stdout.readline())[0]
    finally:
        server.terminate()
        server.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000, help="0: no mixed load")
    parser.add_argument("--good", type=int, default=512, help="requests of a round of throughput")
    parser.add_argument("--n", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--limit", type=int, default=LIMIT, help="tokens of a reply")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    policy = load_policy(options.policy, machine.prepare(options.threads))
    engine = TorchEngine(policy.model, policy.end_ids)
    records = TASK.generate(max(options.requests, options.good), 7)
    with serving(options.policy, options.threads) as url:
        if options.requests:
            some = records[: options.requests]
            load = asyncio.run(mixed(url, some, expected(policy, engine, some), options.clients))
            print(f"mixed: {dict(load.counts)} in {load.seconds:.1f} s", flush=True)
        for n in options.n:
            some = records[: max(options.clients, options.good // n)]
            asked = Throughput(policy, engine, some, n, options.clients, options.limit)
            rounds = [(asked.engine_alone(), asked.steps_alone(), *asked.served(url)) for _ in range(options.rounds)]
            alone, steps, served, client = (statistics.median(numbers) for numbers in zip(*rounds))
            with empty_handler() as nothing:
                bare, bare_client = asked.served(nothing)
            print(
                f"n={n}, replies/s: engine alone {alone:.0f}, steps alone {steps:.0f} ({steps / alone:.0%}), "
                f"served {served:.0f} ({served / alone:.0%}); rounds "
                f"{', '.join(f'{one[2] / one[0]:.0%}' for one in rounds)}; the clients take {1000 * client:.2f} ms a "
                f"request ({1000 * bare_client:.2f} ms and {bare / n:.0f} requests/s against an empty handler)",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
