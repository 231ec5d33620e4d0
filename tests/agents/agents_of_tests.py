"""Agents as users write them, good and bad."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from openai import APIStatusError, AsyncOpenAI

from tuneloop.tasks.contract import Outcome
from tuneloop.toolcalls import ToolCall

SEEN: list[int] = []
"""HTTP statuses that the flooding agent got."""


async def ask(client: AsyncOpenAI, messages: list, task: Any, **more: Any) -> Any:
    found = await client.chat.completions.create(model="any name", messages=messages, tools=list(task.tools), **more)
    return found.choices[0]


async def goes_on(client: AsyncOpenAI, record: dict, task: Any) -> None:
    """Shows the policy its own reply as it wrote it, and asks again."""
    messages = task.messages(record)
    first = await ask(client, messages, task, extra_body={"tuneloop": {"tokens": True}})
    said = {"role": "assistant", "content": first.tuneloop["text"]}
    await ask(client, [*messages, said, {"role": "user", "content": "Your move."}], task)


async def rewrites(client: AsyncOpenAI, record: dict, task: Any) -> None:
    """Shows the policy its reply without the reasoning, as most templates do."""
    messages = task.messages(record)
    first = await ask(client, messages, task)
    said = {"role": "assistant", "content": first.message.content or "I see."}
    await ask(client, [*messages, said, {"role": "user", "content": "Your move."}], task)


async def asks_for_other_sampling(client: AsyncOpenAI, record: dict, task: Any) -> None:
    await ask(client, task.messages(record), task, temperature=0.1, top_p=0.5, seed=3, max_tokens=7, n=2)
    await ask(client, task.messages(record), task, max_tokens=1000, tool_choice="required")


async def streams(client: AsyncOpenAI, record: dict, task: Any) -> None:
    stream = await client.chat.completions.create(
        model="policy", messages=task.messages(record), tools=list(task.tools), stream=True
    )
    async for _ in stream:
        pass


async def misbehaves(client: AsyncOpenAI, record: dict, task: Any) -> None:
    """By the last digit of the record's number: raises, hangs, floods, blocks, says nothing; else asks once."""
    kind = int(record["id"][-1])
    if kind == 0:
        raise ValueError("my own mistake")
    if kind == 1:
        await asyncio.Event().wait()
    if kind == 2:
        while True:
            try:
                await ask(client, task.messages(record), task)
            except APIStatusError as error:
                SEEN.append(error.status_code)
    if kind == 3:
        time.sleep(4)
    if kind != 4:
        await ask(client, task.messages(record), task)


async def dawdles(client: AsyncOpenAI, record: dict, task: Any) -> None:
    if record["id"] == "record-0":
        for _ in range(2):  # together longer than the timeout of the test, each much shorter
            time.sleep(1.5)
            await asyncio.sleep(0.3)
    await ask(client, task.messages(record), task)


async def always_raises(client: AsyncOpenAI, record: dict, task: Any) -> None:
    raise KeyError("nothing works")


RETURNS: list[Any] = [None]


async def returns(client: AsyncOpenAI, record: dict, task: Any) -> Any:
    await ask(client, task.messages(record), task)
    return RETURNS[0]


def not_async(client: AsyncOpenAI, record: dict, task: Any) -> None:
    pass


async def of_two(client: AsyncOpenAI, record: dict) -> None:
    pass


WIN = ToolCall("choose_square", {"square": 3})
LEGAL = Outcome("legal", 0.25)
