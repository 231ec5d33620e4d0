"""One whole measurement of a policy: what the stages baseline and retest have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuneloop import machine
from tuneloop.agents.asker import with_agent
from tuneloop.artifacts import read_jsonl, write_json, write_jsonl
from tuneloop.evaluation.evaluate import greedy_rows, sampled_rows, summarise
from tuneloop.evaluation.games import play_games, summarise_games
from tuneloop.params import Params
from tuneloop.policies.policy import load_policy
from tuneloop.progress import Progress
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.contract import Sampling
from tuneloop.rollout.engines import load_engine
from tuneloop.rollout.episodes import asker_for
from tuneloop.tasks import load_episodes, load_task
from tuneloop.tasks.contract import Record


def measure(params: Params, policy_folder: Path, out: Path, *, rerun: bool) -> None:
    """Evaluate the policy in `policy_folder` on the held-out records and in whole games; write
    replies.jsonl, games.jsonl, metrics.json and timings.json into `out`, and with `rerun` the sampled
    evaluation once more under another seed (rerun.jsonl)."""
    started = time.perf_counter()
    device = machine.prepare(params.machine.threads)
    task = load_task(params.task.name)
    records = read_jsonl("data/boards/heldout.jsonl")
    policy = load_policy(policy_folder, device)
    episodes = load_episodes(task, params.task.mode, params.task.opponent, params.task.reward_at)
    plain = asker_for(policy, load_engine(policy, params.rollout), task, episodes)
    with with_agent(plain, params.rollout) as asker:
        metrics = _measured(asker, records, params, out, rerun)
    write_json(out / "metrics.json", metrics)
    write_json(out / "timings.json", {"seconds": round(time.perf_counter() - started, 3)})
    print(f"held-out reward: {metrics['sampled']['reward']:+.3f} sampled, {metrics['greedy']['reward']:+.3f} greedy")


def _measured(asker: Asker, records: Sequence[Record], params: Params, out: Path, rerun: bool) -> dict[str, Any]:
    """Writes the tables; gives the metrics."""
    task, rollout, samples = asker.task, params.rollout, params.evaluate.samples
    sampling = Sampling(rollout.max_new_tokens, rollout.temperature, rollout.top_p, rollout.top_k)
    with Progress(out.name, len(records) * (1 + samples * (2 if rerun else 1))) as progress:
        greedy = greedy_rows(asker.single, records, rollout.max_new_tokens, progress.advance)
        sampled = sampled_rows(asker.single, records, samples, params.seed, sampling, progress.advance)
        if rerun:
            write_jsonl(
                out / "rerun.jsonl",
                sampled_rows(asker.single, records, samples, params.seed + 1, sampling, progress.advance),
            )
    write_jsonl(out / "replies.jsonl", greedy + sampled)
    games = []
    if task.games is not None and params.evaluate.games:
        games = play_games(asker, task.games, params.evaluate.games, params.seed, rollout.max_new_tokens)
    write_jsonl(out / "games.jsonl", games)
    return {"sampled": summarise(sampled, task), "greedy": summarise(greedy, task), "games": summarise_games(games)}
