"""The evaluation of baseline and retest, asked of an OpenAI-compatible endpoint.

Held-out records, messages, tools, limits, games and scoring are those of `tuneloop.evaluation.measure`; only the asker
is another: it sends messages where that one sends tokens, and reads calls that the server has parsed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tuneloop.artifacts import compact_json, read_jsonl, write_json, write_jsonl
from tuneloop.errors import UserError
from tuneloop.evaluation.endpoint_client import Asked, EndpointClient
from tuneloop.evaluation.endpoint_message import Message, read_message, text_of
from tuneloop.evaluation.evaluate import greedy_rows, sampled_rows, summarise
from tuneloop.evaluation.games import play_games, summarise_games
from tuneloop.params import Params
from tuneloop.policies.chat import without_tools
from tuneloop.progress import Progress
from tuneloop.rollout.contract import FinishReason, Sampling
from tuneloop.rollout.reply_table import hash_of_text, reply_row
from tuneloop.tasks import load_task
from tuneloop.tasks.contract import Outcome, Record, Task, scored
from tuneloop.toolcalls import Fault, Reasoning, ToolCall, load_dialect

SEEDS = 2**31
"""Seeds are sent modulo this: some servers take no more than 31 bits."""


@dataclass(frozen=True)
class Settings:
    """What is asked of which model. None: the value of params.yaml, and for `limit` all records."""

    endpoint: str
    model: str
    samples: int | None = None
    games: int | None = None
    limit: int | None = None
    max_tokens: int | None = None
    token_limit: str = "max_tokens"
    """What the endpoint calls the limit: OpenAI's own newer models know `max_completion_tokens` alone."""
    send_seed: bool = True
    extra: dict[str, Any] = field(default_factory=dict)
    """More keys for the body of every request; they win over those that the evaluation sets."""
    dialect: str | None = None
    """Reads messages without parsed calls as text in this dialect; None: such a message is no call."""
    reasoning: Reasoning | None = None
    tools_in_system: bool = False
    """Describe the tools in the system message, in the dialect's words, instead of sending them as tools."""


@dataclass(frozen=True)
class EndpointAnswer:
    """One message with what was read from it and what it earned; what `rollout.ask.Answer` is to a policy."""

    message: Message
    text: str
    reading: ToolCall | Fault
    outcome: Outcome

    @property
    def length(self) -> int | None:
        return self.message.tokens

    @property
    def finish_reason(self) -> FinishReason:
        return self.message.finish_reason


class EndpointAsker:
    """An endpoint facing one task, in the place of `rollout.ask.Asker`: `ask` and `row` are all that the evaluation
    and the games call. `asking` hears how many requests a call of `ask` holds, `answered` of each answer."""

    def __init__(self, client: EndpointClient, task: Task, settings: Settings):
        if settings.tools_in_system and settings.dialect is None:
            raise UserError("--tools-in-system: needs --dialect NAME, which says how the model is to write its call")
        self.client, self.task, self.settings = client, task, settings
        self.dialect = None if settings.dialect is None else load_dialect(settings.dialect)
        self.asking: Callable[[int], None] = lambda n: None
        self.answered: Callable[[], None] = lambda: None
        self.unread_arguments = 0
        """Calls whose arguments came as something else than JSON text: a fault of the server rather than the model."""

    def prompt(self, record: Record) -> dict[str, Any]:
        """Messages and tools as the endpoint gets them."""
        messages, tools = self.task.messages(record), list(self.task.tools)
        if self.settings.tools_in_system:
            return {"messages": without_tools(messages, tools, self.dialect)}
        return {"messages": messages, "tools": tools}

    def body(self, record: Record, seed: int, sampling: Sampling) -> dict[str, Any]:
        """The whole request. Temperature 0 and nothing else for the likeliest reply, as endpoints have it."""
        body = {
            "model": self.settings.model,
            **self.prompt(record),
            self.settings.token_limit: sampling.max_new_tokens,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
        }
        if not sampling.greedy:
            body["top_p"] = sampling.top_p
            if sampling.top_k:
                body["top_k"] = sampling.top_k
            if self.settings.send_seed:
                body["seed"] = seed % SEEDS
        return body | self.settings.extra

    def ask(
        self, records: Sequence[Record], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[EndpointAnswer]]:
        """For record b one answer a seed in `seeds[b]`."""
        asked = [
            Asked(record["id"], self.body(record, seed, sampling), 0 if sampling.greedy else seed)
            for record, of_record in zip(records, seeds)
            for seed in of_record
        ]
        self.asking(len(asked))
        messages = iter(self.client.answers(asked, self.answered))
        return [[self._answer(record, next(messages)) for _ in of_record] for record, of_record in zip(records, seeds)]

    def row(self, record: Record, sample: int, answer: EndpointAnswer, **kind: Any) -> dict[str, Any]:
        """The reply table's row, as `Asker.row` writes it. `prompt_hash` is of messages and tools (an
        endpoint shows no tokens), `length` null where the endpoint counts none."""
        prompt_hash = hash_of_text(compact_json(self.prompt(record)))
        return reply_row(self.task, record, sample, answer, prompt_hash, **kind)

    def _answer(self, record: Record, message: Message) -> EndpointAnswer:
        self.unread_arguments += any(call.arguments is None for call in message.calls)
        reading = read_message(message, self.task.tools, self.dialect, self.settings.reasoning)
        text = text_of(message)
        return EndpointAnswer(message, text, reading, scored(self.task, record, reading, text, message.finish_reason))


@dataclass(frozen=True)
class Measured:
    """What an evaluation found: `metrics` as in data/baseline/metrics.json, and its reply table."""

    metrics: dict[str, Any]
    rows: list[dict[str, Any]]
    unread_arguments: int


def heldout_records(task: Task, limit: int | None) -> list[Record]:
    """The first `limit` (None: all) records of data/boards/heldout.jsonl. UserError for a broken one."""
    path = "data/boards/heldout.jsonl"
    return [task.validate(record, path) for record in read_jsonl(path)[:limit]]


def measure_endpoint(
    params: Params, settings: Settings, records: Sequence[Record], client: EndpointClient, out: Path
) -> Measured:
    """Evaluate the endpoint on `records` and in whole games; write replies.jsonl, games.jsonl, metrics.json,
    settings.json and timings.json into `out`, all at the end."""
    started = time.perf_counter()
    task = load_task(params.task.name)
    asker = EndpointAsker(client, task, settings)
    samples = params.evaluate.samples if settings.samples is None else settings.samples
    count = params.evaluate.games if settings.games is None else settings.games
    limit = settings.max_tokens or params.rollout.max_new_tokens
    sampling = Sampling(limit, params.rollout.temperature, params.rollout.top_p, params.rollout.top_k)
    with Progress("replies", len(records) * (1 + samples)) as progress:
        asker.answered = progress.advance
        greedy = greedy_rows(asker, records, limit)
        sampled = sampled_rows(asker, records, samples, params.seed, sampling)
    games: list[dict[str, Any]] = []
    if task.games is not None and count:
        asker.answered = lambda: None
        asker.asking = lambda positions: print(f"[games] {positions} positions", flush=True)
        games = play_games(asker, task.games, count, params.seed, limit)
    metrics = {"sampled": _summary(sampled, task), "greedy": _summary(greedy, task), "games": summarise_games(games)}
    write_jsonl(out / "replies.jsonl", greedy + sampled)
    write_jsonl(out / "games.jsonl", games)
    write_json(out / "metrics.json", metrics)
    write_json(out / "settings.json", _settings_as_run(settings, task, records, samples, count, sampling, params.seed))
    counts = asdict(client.counts)
    write_json(out / "timings.json", {"seconds": round(time.perf_counter() - started, 3), "requests": counts})
    return Measured(metrics, greedy + sampled, asker.unread_arguments)


def _summary(rows: Sequence[dict[str, Any]], task: Task) -> dict[str, Any]:
    """`summarise`, without lengths where the endpoint did not count every reply's tokens."""
    if all(row["length"] is not None for row in rows):
        return summarise(rows, task)
    summary = summarise([row | {"length": 0} for row in rows], task)
    return summary | {"length": dict.fromkeys(summary["length"])}


def _settings_as_run(
    settings: Settings,
    task: Task,
    records: Iterable[Record],
    samples: int,
    games: int,
    sampling: Sampling,
    seed: int,
) -> dict[str, Any]:
    ids = [record["id"] for record in records]
    return asdict(settings) | {
        "task": task.name,
        "records": len(ids),
        "records_hash": hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16],
        "samples": samples,
        "games": games,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": seed,
    }
