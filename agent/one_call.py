"""The built-in agent, written out: one question to the policy, whose tool call is the answer.

    dvc exp run -S rollout.agent=agent.one_call:choose

It returns nothing, so it earns what the task gives for the last reply. Copy it and go on from there (docs/agents.md).
"""

from __future__ import annotations

from openai import AsyncOpenAI

from tuneloop.tasks.contract import Record, Task


async def choose(client: AsyncOpenAI, record: Record, task: Task) -> None:
    await client.chat.completions.create(model="policy", messages=task.messages(record), tools=list(task.tools))
