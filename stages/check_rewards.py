"""check_rewards: every reward that was measured or trained on, computed once more by other means.

    python -m stages.check_rewards

Reads the reward tables data/baseline/replies.jsonl, data/baseline/rerun.jsonl, data/train/replies.jsonl
and data/retest/replies.jsonl, and writes data/checks/rewards.json. The suites are in
tuneloop/checks/replies.py; outcome and reward of every row are held against the task's oracle, which
shares no code with the reader and the scorer. Where an expectation fails, stderr names table,
expectation and record ids, and the exit status is 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tuneloop.artifacts import read_jsonl
from tuneloop.checks import agents, load_checks
from tuneloop.checks.episodes import episode_tables
from tuneloop.checks.replies import (
    EVALUATION_COLUMNS,
    TRAINING_COLUMNS,
    Setting,
    evaluation_tables,
    pairing_table,
    training_tables,
)
from tuneloop.checks.verdict import Verdict, conclude, validate
from tuneloop.params import load_params
from tuneloop.stage import stage
from tuneloop.tasks import load_episodes, load_task
from tuneloop.tasks.contract import Record, Task
from tuneloop.toolcalls.contract import Reasoning

DATA = Path("data")
OUTPUT = DATA / "checks" / "rewards.json"


def check(
    data: Path,
    task_name: str,
    dialect: str,
    reasoning: Reasoning | None,
    max_new_tokens: int,
    samples: int,
    group_size: int,
    steps: int,
    extra_records: bool = False,
    mode: str = "move",
    opponent: str = "mixed",
    reward_at: str = "end",
    agent_turns: int = 0,
) -> Verdict:
    """The verdict on the reward tables under `data`; the numbers are those of params.yaml (`agent_turns`: 0 where no
    agent led the episodes).

    Raises UserError for a file that cannot be read and for a dialect without an oracle.
    """
    task = load_task(task_name)
    setting = Setting(
        task=task,
        checks=load_checks(task_name),
        train=_records(task, data / "boards" / "train.jsonl") + (task.extra_records() if extra_records else []),
        heldout=_records(task, data / "boards" / "heldout.jsonl"),
        max_new_tokens=max_new_tokens,
        dialect=dialect,
        reasoning=reasoning,
        most_turns=max(1, agent_turns),
        fewest_tokens=0 if agent_turns else 1,
    )
    columns = agents.COLUMNS if agent_turns else {}
    of_reply, of_training = EVALUATION_COLUMNS | columns, TRAINING_COLUMNS | columns
    baseline = read_jsonl(data / "baseline" / "replies.jsonl")
    rerun = read_jsonl(data / "baseline" / "rerun.jsonl")
    retest = read_jsonl(data / "retest" / "replies.jsonl")
    sampled = [row for row in baseline if row.get("decoding") == "sampled"]
    tables = [
        *evaluation_tables("baseline", baseline, setting, {"greedy": 1, "sampled": samples}, of_reply),
        *evaluation_tables("rerun", rerun, setting, {"sampled": samples}, of_reply),
        *evaluation_tables("retest", retest, setting, {"greedy": 1, "sampled": samples}, of_reply),
        pairing_table("baseline", baseline, "retest", retest),
        pairing_table("baseline", sampled, "rerun", rerun),
    ]
    training = []
    if steps:
        training = read_jsonl(data / "train" / "replies.jsonl")
        episodes = load_episodes(task, mode, opponent, reward_at)
        if episodes is None:
            tables += training_tables("train", training, setting, group_size, steps, of_training)
        else:
            tables += episode_tables("train", training, setting, group_size, steps, episodes, reward_at)
    note = getattr(setting.checks, "note", None)
    if agent_turns:
        tables = agents.of_agents(tables)
        told = agents.note_of({"baseline": baseline, "rerun": rerun, "retest": retest, "train": training})
        note = told if note is None else f"{note}; {told}"
    return validate(tables) | ({} if note is None else {"note": note})


def main() -> int:
    """The exit status: 0 if all expectations hold, 1 if not."""
    from tuneloop.policies.card import load_policy_card

    with stage("check_rewards"):
        params = load_params()
        policy = load_policy_card(DATA / "policy" / "model")
        verdict = check(
            DATA,
            params.task.name,
            policy.dialect,
            policy.reasoning,
            max_new_tokens=params.rollout.max_new_tokens,
            samples=params.evaluate.samples,
            group_size=params.train.group_size,
            steps=params.train.steps,
            extra_records=params.train.extra_records,
            mode=params.task.mode,
            opponent=params.task.opponent,
            reward_at=params.task.reward_at,
            agent_turns=0 if params.rollout.agent is None else params.rollout.agent_turns,
        )
        if "note" in verdict:
            print(f"note: {verdict['note']}")
        return conclude("check_rewards", verdict, OUTPUT)


def _records(task: Task, path: Path) -> list[Record]:
    return [task.validate(row, f"{path}, line {line}") for line, row in enumerate(read_jsonl(path), 1)]


if __name__ == "__main__":
    sys.exit(main())
