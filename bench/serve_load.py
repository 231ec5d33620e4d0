"""The server under load: is anything lost or wrong, and what of the engine's throughput reaches the clients?

    python -m bench.serve_load --policy data/train/policy [--clients 64] [--requests 2000] [--n 1 8]

1. Mixed: `--clients` clients send `--requests` requests; a quarter is malformed, a quarter is cancelled by the client
   after a random time. Every other one must get the very tokens that the engine gives for its prompt and seed.
2. Throughput, for each n: the same clients with good requests only, against the engine alone in calls of as many
   prompts as there are clients. Replies per second, and the ratio.

The server is a process of its own, and the clients are another: they share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
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


async def good(url: str, records: Sequence[Any], n: int, clients: int) -> Load:
    """Good requests only."""

    async def one(session: aiohttp.ClientSession, i: int) -> str:
        status, answer = await _post(session, url, json.dumps(body(records[i], i, n)).encode())
        return "right" if status == 200 and len(answer["choices"]) == n else "wrong"

    return await _all(len(records), clients, one, Counter())


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


def alone(policy: Policy, engine: Engine, records: Sequence[Any], n: int, batch: int) -> float:
    """Seconds that the engine takes for the same replies in calls of `batch` prompts, whose ids are ready."""
    prompts = [policy.prompt_ids(TASK.messages(record), TASK.tools) for record in records]
    started = time.perf_counter()
    for i in range(0, len(prompts), batch):
        part = prompts[i : i + batch]
        engine.generate(part, [[1000 * i + j * n + k for k in range(n)] for j in range(len(part))], Sampling(LIMIT))
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--n", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    policy = load_policy(options.policy, machine.prepare(options.threads))
    engine = TorchEngine(policy.model, policy.end_ids)
    records = TASK.generate(options.requests, 7)
    truth = expected(policy, engine, records)
    command = [
        sys.executable,
        "-m",
        "tuneloop.cli",
        "serve",
        "--policy",
        options.policy,
        "--port",
        "0",
        "--name",
        "nano",
    ]
    server = subprocess.Popen([*command, "--threads", str(options.threads)], stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://\S+", server.stdout.readline())[0]
        load = asyncio.run(mixed(url, records, truth, options.clients))
        print(f"mixed: {dict(load.counts)} in {load.seconds:.1f} s", flush=True)
        for n in options.n:
            some = records[: max(options.clients, options.requests // n)]
            load = asyncio.run(good(url, some, n, options.clients))
            engine_seconds = alone(policy, engine, some, n, options.clients)
            served, bare = len(some) * n / load.seconds, len(some) * n / engine_seconds
            print(f"n={n}: {dict(load.counts)}, {served:.0f} replies/s; engine alone {bare:.0f}: {served / bare:.0%}")
    finally:
        server.terminate()
        server.wait(30)
    return 0


if __name__ == "__main__":
    sys.exit(main())
