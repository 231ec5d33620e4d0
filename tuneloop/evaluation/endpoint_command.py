"""`tuneloop evaluate`: the evaluation of baseline and retest on any OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from tuneloop.errors import UserError


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tuneloop evaluate`."""
    add = parser.add_argument
    add("--endpoint", required=True, metavar="URL", help="base URL, such as http://127.0.0.1:8000/v1")
    add("--model", required=True, metavar="NAME", help="the model's name at the endpoint")
    add("--key-env", metavar="VAR", help="environment variable that holds the endpoint's key")
    add("--samples", type=_at_least(1), metavar="N", help="sampled replies a record (default: evaluate.samples)")
    add("--games", type=_at_least(0), metavar="N", help="games a side and opponent (default: evaluate.games)")
    add("--limit", type=_at_least(1), metavar="N", help="only the first N held-out records")
    add("--out", type=Path, metavar="FOLDER", help="default: data/endpoints/NAME")
    add("--max-tokens", type=_at_least(1), metavar="N", help="tokens a reply (default: rollout.max_new_tokens)")
    add(
        "--token-limit",
        choices=("max_tokens", "max_completion_tokens"),
        default="max_tokens",
        help="what the endpoint calls that limit (default: %(default)s)",
    )
    add("--no-seed", action="store_true", help="send no seed, for an endpoint that refuses it")
    add("--extra", default="{}", metavar="JSON", help="more keys for every request, as a JSON object")
    add("--dialect", metavar="NAME", help="read messages without parsed calls as text in this dialect, e.g. hermes")
    add(
        "--reasoning",
        default="<think>,</think>",
        help="with --dialect: opening and closing marker of reasoning in the text, or none (default: %(default)s)",
    )
    add(
        "--tools-in-system",
        action="store_true",
        help="with --dialect: describe the tool in the system message, for an endpoint without tools",
    )
    add("--parallel", type=_at_least(1), default=16, metavar="N", help="requests at once (default: %(default)s)")
    add("--timeout", type=_seconds, default=120.0, metavar="SECONDS", help="of one request (default: %(default)s)")
    add("--retries", type=_at_least(0), default=7, metavar="N", help="of one request (default: %(default)s)")


def run_evaluate(options: argparse.Namespace) -> int:
    """Asks, writes the tables and prints them beside data/baseline and data/retest. Stopped, by Ctrl-C or by a request
    that fails for good, it keeps what was answered, and the same command goes on from there."""
    from tuneloop.evaluation.endpoint_client import EndpointClient, KeptAnswers, endpoint_url, key_from

    try:
        import openai  # noqa: F401
    except ImportError:
        raise UserError("tuneloop evaluate: needs the openai package: pip install 'tuneloop[endpoint]'") from None
    url, key, extra = endpoint_url(options.endpoint), key_from(options.key_env), _extra(options.extra)

    from tuneloop.cli import reasoning_of
    from tuneloop.evaluation.endpoint import Settings, heldout_records, measure_endpoint
    from tuneloop.evaluation.endpoint_table import Column, column_of, table
    from tuneloop.params import load_params
    from tuneloop.tasks import load_task
    from tuneloop.toolcalls import load_dialect

    params = load_params()
    task = load_task(params.task.name)
    records = heldout_records(task, options.limit)
    if options.dialect is not None:
        load_dialect(options.dialect)
    settings = Settings(
        url,
        options.model,
        options.samples,
        options.games,
        options.limit,
        options.max_tokens,
        options.token_limit,
        not options.no_seed,
        extra,
        options.dialect,
        None if options.dialect is None else reasoning_of(options.reasoning, False),
        options.tools_in_system,
    )
    out = options.out or Path("data/endpoints") / re.sub(r"[^\w.-]+", "-", options.model).strip(".-")
    # Read before anything is asked: a broken file costs nothing then.
    others = [column for name in ("baseline", "retest") if (column := column_of(Path("data") / name, records, task))]
    kept = KeptAnswers(out / ".answers.jsonl", url)
    try:
        with EndpointClient(
            url, key, kept, parallel=options.parallel, timeout=options.timeout, retries=options.retries
        ) as client:
            measured = measure_endpoint(params, settings, records, client, out)
            kept.remove()
    except KeyboardInterrupt:
        print(
            f"stopped; what was answered is kept in {kept.path}, the same command goes on from there", file=sys.stderr
        )
        raise
    column = Column(options.model, measured.metrics, measured.rows)
    print("\n" + table([column, *others], records, task, params.compare, params.seed), end="")
    if measured.unread_arguments:
        print(
            f"{measured.unread_arguments} calls had arguments that are not JSON text (counted as bad_arguments): look "
            "at the server before you blame the model"
        )
    counts = client.counts
    print(f"{counts.asked} requests, {counts.kept} answers kept from before, {counts.retries} retries; wrote {out}")
    return 0


def _extra(text: str) -> dict[str, Any]:
    from tuneloop.toolcalls.strict_json import decode

    try:
        value = decode(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f'--extra {text[:80]!r}: write a JSON object, such as \'{{"reasoning_effort": "low"}}\'')
    if fixed := sorted({"model", "messages", "tools", "stream", "n"} & value.keys()):
        raise UserError(f"--extra: {', '.join(fixed)} belong to the evaluation; leave them out")
    return value


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    number.__name__ = "whole number"
    return number


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time")
    return value


_seconds.__name__ = "number of seconds"
