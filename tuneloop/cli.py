"""The `tuneloop` command.

    tuneloop score --board "X.O/.../XO." --dialect hermes < reply.txt
    tuneloop doctor
    tuneloop serve --policy data/train/policy
    tuneloop evaluate --endpoint http://127.0.0.1:8000/v1 --model NAME
    tuneloop new-task NAME

A subcommand is a `Command` in `COMMANDS`: one function declares its arguments, one does the work.
Whatever is slow to import (torch, plots, servers), or may be missing, is imported inside the latter.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from tuneloop.artifacts import compact_json
from tuneloop.errors import UserError
from tuneloop.evaluation.endpoint_command import evaluate_arguments, run_evaluate
from tuneloop.newtask.command import new_task_arguments, run_new_task

if TYPE_CHECKING:
    from tuneloop.toolcalls import Reasoning


@dataclass(frozen=True)
class Command:
    """`help` is one line; `run` prints its results and returns the exit status."""

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. Exit status: 0 done, 1 `doctor` found something that fails, 2 bad input (one line
    on stderr says what), 130 interrupted, 141 whoever read the output has left."""
    try:
        options = _parser().parse_args(argv)
        return options.run(options)
    except UserError as error:
        print(f"tuneloop: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Else Python complains when it flushes standard output at its end ("Note on SIGPIPE" in its manual).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _score_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--board",
        "--record",
        dest="board",
        required=True,
        help="the record on one line, as the tables show it (X.O/.../XO.); of a task with a file of records, its id",
    )
    parser.add_argument("--dialect", required=True, help="how the reply writes tool calls, e.g. hermes")
    parser.add_argument("--task", default="tictactoe", help="default: %(default)s")
    parser.add_argument(
        "--reasoning",
        default="<think>,</think>",
        help="opening and closing marker with a comma between them, or none (default: %(default)s)",
    )
    parser.add_argument(
        "--opened-by-prompt", action="store_true", help="the prompt wrote the opening marker: the reply starts inside"
    )


def _score(options: argparse.Namespace) -> int:
    """Reads a reply from standard input (any bytes) and prints its outcome, reward and arguments:
    every argument of the task's tools is a key, null where there is no valid call."""
    from tuneloop.tasks import load_task
    from tuneloop.tasks.contract import scored
    from tuneloop.toolcalls import ToolCall, load_dialect, read_reply

    task, dialect = load_task(options.task), load_dialect(options.dialect)
    reasoning = reasoning_of(options.reasoning, options.opened_by_prompt)
    record = task.parse(options.board)
    if sys.stdin is None:
        raise UserError("standard input is closed: pipe the reply into this command")
    reply = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    reading = read_reply(reply, dialect, task.tools, reasoning)
    outcome = scored(task, record, reading, reply)
    row = {"outcome": outcome.name, "reward": outcome.reward}
    for tool in task.tools:
        row |= dict.fromkeys(tool["function"].get("parameters", {}).get("properties", {}))
    print(compact_json(row | (reading.arguments if isinstance(reading, ToolCall) else {})))
    return 0


def reasoning_of(markers: str, opened_by_prompt: bool) -> Reasoning | None:
    """Reasoning markers as `--reasoning` writes them; UserError for anything but none and two different markers."""
    from tuneloop.toolcalls import Reasoning

    if markers == "none":
        return None
    opening, comma, closing = markers.partition(",")
    if not (opening and comma and closing) or opening == closing:
        raise UserError(f"--reasoning {markers!r}: write none, or two different markers like '<think>,</think>'")
    return Reasoning(opening, closing, opened_by_prompt)


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")


def _doctor(options: argparse.Namespace) -> int:
    from tuneloop.doctor.command import run_doctor

    return run_doctor(as_json=options.json)


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", required=True, metavar="FOLDER", help="for instance data/train/policy")
    parser.add_argument("--host", default="127.0.0.1", help="any other address wants --key (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any that is free (default: %(default)s)")
    parser.add_argument(
        "--key", default=os.environ.get("TUNELOOP_KEY") or None, help="what clients must send (default: $TUNELOOP_KEY)"
    )
    parser.add_argument("--name", help="the model's id (default: the policy's source, as its card says)")
    parser.add_argument("--engine", choices=("torch", "transformers"), default="torch", help="default: %(default)s")
    parser.add_argument("--threads", type=int, help="of the CPU (default: all)")
    parser.add_argument("--queue", type=int, default=1024, help="requests that may wait (default: %(default)s)")
    parser.add_argument(
        "--max-tokens", type=int, default=256, help="of a reply whose request names no limit (default: %(default)s)"
    )


def _serve(options: argparse.Namespace) -> int:
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise UserError("serve needs the packages uvicorn and starlette: pip install -e '.[serve]'")
    from tuneloop.serving.command import run_serve

    return run_serve(options)


COMMANDS = (
    Command("score", "outcome and reward of one reply, read from standard input", _score_arguments, _score),
    Command(
        "doctor", "is this machine, and the project in this folder, ready? and what to do", _doctor_arguments, _doctor
    ),
    Command(
        "evaluate",
        "the evaluation of baseline and retest on any OpenAI-compatible endpoint",
        evaluate_arguments,
        run_evaluate,
    ),
    Command("new-task", "a small working task to begin your own from", new_task_arguments, run_new_task),
    Command("serve", "an OpenAI-compatible server for a policy folder", _serve_arguments, _serve),
)


class _Parser(argparse.ArgumentParser):
    """Bad arguments are reported like all other bad input."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tuneloop", description="Baseline, post-train, retest: did the model change, by more than noise?"
    )
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
