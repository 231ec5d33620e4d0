"""Examples from a file (`train.examples`): demonstrations for `sft`, preference pairs for `dpo`.

    {"id": "generated-00012", "reply": "<think>…"}                          sft
    {"id": "generated-00012", "chosen": "<think>…", "rejected": "…"}        dpo

`id` names a training record; the texts are replies as the policy would write them: reasoning markers and tool calls in
its dialect, without the end token, which is added here. Every line is looked at before anything is trained.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneloop.artifacts import read_jsonl
from tuneloop.errors import UserError
from tuneloop.rollout.ask import Asker
from tuneloop.tasks.contract import Record, scored
from tuneloop.toolcalls import read_reply
from tuneloop.training.batch import Group

FOLDER = Path("examples")
"""Where the files lie: the train stage depends on this folder (dvc.yaml), so that it runs again when one changes."""
TEXTS = {"sft": ("reply",), "dpo": ("chosen", "rejected")}
"""The fields of a line beside `id`, by `train.algorithm`."""
WEIGHTS = {"sft": [1.0], "dpo": [1.0, -1.0]}


@dataclass(frozen=True)
class Examples:
    """What a file holds: a group for each line, with the line's replies (their `old_logprobs` are 0: nobody sampled
    them), and what is to be said of their rewards."""

    groups: list[Group]
    notes: list[str]


def load_examples(
    path: Path | str,
    algorithm: str,
    asker: Asker,
    records: Iterable[Record],
    heldout: Iterable[Record],
    max_new_tokens: int,
) -> Examples:
    """The examples in `path` on `records`, tokenised as replies of `asker`'s policy. Raises UserError that names the
    file, the line and the record's id for a line that cannot be trained on, and for a file outside `FOLDER`."""
    path = _in_folder(path)
    known, held_out = {record["id"]: record for record in records}, {record["id"] for record in heldout}
    groups, rewards = [], []
    for line, row in enumerate(read_jsonl(path), 1):
        where = f"{path}, line {line}"
        texts = _texts(row, TEXTS[algorithm], algorithm, where)
        where = f"{where}, id {row['id']}"
        if row["id"] in held_out:
            raise UserError(f"{where}: is a held-out record, which is never trained on; take the line out")
        if row["id"] not in known:
            raise UserError(f"{where}: there is no such training record; take an id of data/boards/train.jsonl")
        record = known[row["id"]]
        prompt = asker.prompt(record, max_new_tokens)
        replies = [_reply_ids(asker, text, max_new_tokens, f"{where}: {name}") for name, text in texts.items()]
        if len({tuple(ids) for ids in replies}) < len(replies):
            raise UserError(f"{where}: chosen and rejected are the same reply; take the line out")
        groups.append(Group(prompt, replies, [[0.0] * len(ids) for ids in replies], list(WEIGHTS[algorithm])))
        rewards.append([_reward(asker, record, ids) for ids in replies])
    return Examples(groups, _notes(path, algorithm, groups, rewards, asker.task.reward_range))


def _in_folder(path: Path | str) -> Path:
    if not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(FOLDER)):
        raise UserError(
            f"train.examples: {path} is not in the folder {FOLDER}/, which the train stage depends on; put it there, "
            "else training would not run again when the file changes"
        )
    if not Path(path).is_file():
        raise UserError(f"train.examples: there is no file {path}")
    return Path(path)


def _texts(row: Mapping[str, Any], names: Sequence[str], algorithm: str, where: str) -> dict[str, str]:
    wanted = ("id", *names)
    if set(row) != set(wanted):
        raise UserError(
            f"{where}: has the fields {', '.join(row) or '(none)'}; algorithm {algorithm} wants {', '.join(wanted)}"
        )
    for name in wanted:
        if not isinstance(row[name], str) or not row[name].strip():
            raise UserError(f"{where}, id {row['id']!r}: {name} is {row[name]!r}, not a text")
    return {name: row[name] for name in names}


def _reply_ids(asker: Asker, text: str, most: int, where: str) -> list[int]:
    """The tokens of a reply, the end token included."""
    ids = asker.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    if inside := set(ids) & set(asker.policy.end_ids):
        token = asker.policy.tokenizer.decode(sorted(inside)[:1])
        raise UserError(f"{where} holds the token that ends a reply ({token}); leave it out: it is added")
    if len(ids) + 1 > most:
        raise UserError(
            f"{where} takes {len(ids) + 1} tokens, more than rollout.max_new_tokens={most}; shorten it, or raise that"
        )
    return [*ids, asker.policy.end_ids[0]]


def _reward(asker: Asker, record: Record, ids: Sequence[int]) -> float:
    """What the task itself says of the reply."""
    text = asker.policy.decode(ids)
    reading = read_reply(text, asker.dialect, asker.task.tools, asker.policy.card.reasoning)
    return scored(asker.task, record, reading, text).reward


def _notes(
    path: Path, algorithm: str, groups: Sequence[Group], rewards: Sequence[Sequence[float]], bounds: tuple[float, float]
) -> list[str]:
    """One line that counts, and warnings where the task's own reward contradicts the examples."""
    means = ", ".join(
        f"mean reward {sum(column) / len(column):+.3f} ({name})"
        for name, column in zip(TEXTS[algorithm], zip(*rewards))
    )
    prompts = len({tuple(group.prompt) for group in groups})
    counts = f"{len(groups)} example{'s' * (len(groups) > 1)} on {prompts} prompt{'s' * (prompts > 1)}"
    notes = [f"{path}: {counts}; {means}"]
    if algorithm == "sft":
        bad = [line for line, (reward,) in enumerate(rewards, 1) if reward <= sum(bounds) / 2]
        what = f"demonstrations earn no more than {sum(bounds) / 2:g}, the middle of the task's rewards"
    else:
        bad = [line for line, (chosen, rejected) in enumerate(rewards, 1) if chosen <= rejected]
        what = "pairs have a chosen reply that earns no more than the rejected one"
    if bad:
        lines = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
        notes.append(f"WARN {path}: {len(bad)} of {len(groups)} {what} (line{'s' * (len(bad) > 1)} {lines})")
    return notes
