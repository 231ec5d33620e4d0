"""Filing the messages that an office gets: one call of `file_message` with a category and an urgency.

This file is a whole task: the tool, the messages that the policy is shown, the reward. Replace records.jsonl and these
three by your own; docs/your-task.md goes through them one by one.
"""

from __future__ import annotations

from tuneloop.tasks.contract import Message, Record
from tuneloop.tasks.plain import Reply, plain_task, tool

FILE_MESSAGE = tool(
    "file_message",
    "File a message.",
    {
        "category": {"enum": ["account", "billing", "delivery", "repair"], "description": "What the message is about."},
        "urgency": {"enum": ["low", "high"], "description": "How soon somebody must look at it."},
    },
)

OUTCOMES = {"wrong": 0.0, "urgency_only": 0.2, "category_only": 0.6, "right": 1.0}
"""Names for rewards, for tables and plots: each with the least reward that it stands for."""


def messages(record: Record) -> list[Message]:
    """What the policy is shown: the record's input, never its answer."""
    system = "You file the messages of an office. Answer with exactly one call of file_message."
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"{record['subject']}\n{record['text']}"},
    ]


def reward(record: Record, reply: Reply) -> float:
    """From 0 to 1: the category counts for more than the urgency. A reply without a valid call does not come here, it
    earns -1."""
    right = record["answer"]
    category = reply.arguments["category"] == right["category"]
    urgency = reply.arguments["urgency"] == right["urgency"]
    if category and urgency:
        return 1.0
    if category:
        return 0.6
    return 0.2 if urgency else 0.0


TASK = plain_task(__file__, tools=[FILE_MESSAGE], messages=messages, reward=reward, outcomes=OUTCOMES)
