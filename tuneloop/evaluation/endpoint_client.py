"""Requests to an OpenAI-compatible endpoint: so many at once, failed ones again after a pause, and every answer in a
file as soon as it is there, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tuneloop.artifacts import compact_json
from tuneloop.errors import UserError
from tuneloop.evaluation.endpoint_message import Message, message_of

AGAIN = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which the same request may succeed."""

FIRST_PAUSE, LONGEST_PAUSE, LONGEST_ASKED_PAUSE = 0.5, 30.0, 90.0
"""Seconds before the second attempt (each later pause is twice as long, up to the second number, give or take a
half), and how long at most an endpoint may ask for in `Retry-After`."""

HINTS = (
    ("max_completion_tokens", "--token-limit max_completion_tokens names the limit as this endpoint wants it"),
    ("seed", "--no-seed leaves the seed out"),
    (
        "tool",
        "the model or its server may not support tools: start the server with its tool-call parser, or give "
        "--dialect NAME --tools-in-system, which describes the tool in the system message and reads the call from "
        "the text",
    ),
)
"""What to do, by a word in the endpoint's refusal."""


@dataclass(frozen=True)
class Asked:
    """One request. `body` is the JSON that the endpoint gets; `draw` tells samples with the same body apart."""

    record: str
    body: dict[str, Any]
    draw: int = 0


@dataclass
class Counts:
    """How the answers of a run were come by."""

    asked: int = 0
    """Requests answered in this run."""
    kept: int = 0
    """Answers taken from an earlier run that was stopped."""
    retries: int = 0


class KeptAnswers:
    """Answers by request, in a file that holds those of an unfinished run.

    An answer is found by everything that the request was: endpoint, record, draw and the whole body (model, messages,
    tools, limits). So answers to another question are never taken, whatever changed in between.
    """

    def __init__(self, path: Path, endpoint: str):
        """Opens or makes the file; UserError if it cannot be written or another evaluation uses it."""
        self.path, self.endpoint = path, endpoint
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise UserError(f"--out {path.parent}: cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError(f"--out {path.parent}: another evaluation is writing there; give another folder") from None
        self._answers = self._read()

    def _read(self) -> dict[str, Message]:
        self._file.seek(0)
        # A process that was killed may have left half a line.
        whole, newline, _ = self._file.read().rpartition(b"\n")
        self._file.truncate(len(whole) + len(newline))
        lines = map(json.loads, whole.split(b"\n")) if whole else ()
        try:
            return {line["key"]: Message.from_json(line["message"]) for line in lines}
        except (ValueError, KeyError, TypeError):
            self._file.close()
            raise UserError(f"{self.path}: holds something else than kept answers; delete it") from None

    def get(self, asked: Asked) -> Message | None:
        return self._answers.get(self._key(asked))

    def put(self, asked: Asked, message: Message) -> None:
        key = self._key(asked)
        self._answers[key] = message
        # ASCII: a reply may hold halves of surrogate pairs, which UTF-8 cannot.
        self._file.write(json.dumps({"key": key, "message": message.to_json()}).encode("ascii") + b"\n")
        self._file.flush()

    def remove(self) -> None:
        """The run is finished and its results are written."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()

    def _key(self, asked: Asked) -> str:
        text = compact_json([self.endpoint, asked.record, asked.draw, asked.body])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class EndpointClient:
    """`with EndpointClient(url, key, kept) as client: client.answers(requests)`."""

    def __init__(
        self,
        url: str,
        key: str | None,
        kept: KeptAnswers,
        *,
        parallel: int = 16,
        timeout: float = 120.0,
        retries: int = 7,
    ):
        from openai import AsyncOpenAI

        self.kept, self.counts = kept, Counts()
        self.parallel, self.timeout, self.retries = parallel, timeout, retries
        self._key = key
        self._runner = asyncio.Runner()
        # The client would take OPENAI_API_KEY by itself: no key goes anywhere that was not named for it. It retries
        # nothing by itself either, so that every attempt is counted.
        self._client = AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=0, timeout=timeout)

    def __enter__(self) -> EndpointClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._client.close())
        finally:
            self._runner.close()
            self.kept.close()

    def answers(self, asked: Sequence[Asked], answered: Callable[[], None] = lambda: None) -> list[Message]:
        """The answers in the order of `asked`; `answered` is called as each arrives.

        A request that fails for good ends all others that are under way: UserError naming its record. Answers that
        had arrived are kept.
        """
        return self._runner.run(self._all(asked, answered))

    async def _all(self, asked: Sequence[Asked], answered: Callable[[], None]) -> list[Message]:
        free = asyncio.Semaphore(self.parallel)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(request, free, answered)) for request in asked]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _one(self, asked: Asked, free: asyncio.Semaphore, answered: Callable[[], None]) -> Message:
        message = self.kept.get(asked)
        if message is None:
            async with free:
                message = await self._with_retries(asked)
            self.kept.put(asked, message)
            self.counts.asked += 1
        else:
            self.counts.kept += 1
        answered()
        return message

    async def _with_retries(self, asked: Asked) -> Message:
        for attempt in range(self.retries + 1):
            try:
                return await self._attempt(asked)
            except _Failed as failed:
                if not failed.again or attempt == self.retries:
                    times = f" after {attempt + 1} attempts" if attempt else ""
                    raise UserError(
                        f"record {asked.record}: the endpoint {self._shown(failed.why)}{times}; what was answered so "
                        "far is kept, and the same command goes on from there"
                    ) from None
                self.counts.retries += 1
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.5)
                await asyncio.sleep(max(pause, min(failed.asked_pause, LONGEST_ASKED_PAUSE)))
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, asked: Asked) -> Message:
        from openai import APIConnectionError, APIStatusError, APITimeoutError, OpenAIError

        body = dict(asked.body)
        try:
            # The client's own timeout is one between two packets: an answer that drips has no end by it.
            async with asyncio.timeout(self.timeout):
                response = await self._client.chat.completions.with_raw_response.create(
                    model=body.pop("model"), messages=body.pop("messages"), extra_body=body
                )
                text = response.text
        except (TimeoutError, APITimeoutError):
            raise _Failed(f"gave no answer in {self.timeout:g} s (--timeout)") from None
        except APIConnectionError as error:
            raise _Failed(f"cannot be reached ({error.__cause__ or error})") from None
        except APIStatusError as error:
            raise _refusal(error.status_code, error.response.text, error.response.headers) from None
        except OpenAIError as error:
            raise _Failed(f"gave no usable answer ({error})") from None
        try:
            return message_of(text)
        except ValueError as error:
            raise _Failed(f"answered something that is no chat completion ({error})") from None

    def _shown(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


class _Failed(Exception):
    """One attempt that failed; `again`: the next may not."""

    def __init__(self, why: str, again: bool = True, asked_pause: float = 0.0):
        super().__init__(why)
        self.why, self.again, self.asked_pause = why, again, asked_pause


def _refusal(status: int, body: str, headers: Any) -> _Failed:
    said = body
    try:
        value = json.loads(body)
        error = value.get("error", value) if isinstance(value, dict) else value
        said = error.get("message", body) if isinstance(error, dict) else error
    except (ValueError, RecursionError):
        pass
    why = f"answered {status}: {' '.join(str(said).split())[:400] or 'without a word'}"
    if status in (400, 404, 422, 500, 501):
        hint = next((hint for word, hint in HINTS if word in str(said).lower()), None)
        why += f" ({hint})" if hint else ""
    elif status in (401, 403):
        why += " (--key-env VAR names the environment variable that holds the key)"
    try:
        pause = float(headers.get("retry-after", 0))
    except ValueError:  # a date
        pause = 0.0
    return _Failed(why, status in AGAIN or status >= 500, pause if pause > 0 else 0.0)


def endpoint_url(text: str) -> str:
    """`text` as the base URL of an endpoint, without a slash at its end. UserError for anything but http(s)://host…,
    and for a URL that holds a name, password or query: those would be written beside the results."""
    if "@" in text or "?" in text or "#" in text:
        raise UserError(
            "--endpoint: no name, password or query in the URL; --key-env VAR names the variable that holds the key"
        )
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        usable = False
    if not usable:
        raise UserError(f"--endpoint {text!r}: write the base URL, such as http://127.0.0.1:8000/v1")
    return text.rstrip("/").removesuffix("/chat/completions")


def key_from(variable: str | None) -> str | None:
    """The key in an environment variable; UserError if it is not set. None for no variable."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"--key-env {variable}: this environment variable is not set; put the endpoint's key into it")
    if not key.isascii() or not key.isprintable():
        raise UserError(f"--key-env {variable}: its value cannot be a key (not plain printable text)")
    return key
