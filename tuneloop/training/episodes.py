"""From episodes to training rows: the groups of a step, whatever number of turns its episodes have."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tuneloop.errors import UserError
from tuneloop.rollout.ask import Answer, Asker
from tuneloop.rollout.trajectory import Row, Trajectory, Turn, rows
from tuneloop.tasks.contract import Record
from tuneloop.training.advantages import group_advantages
from tuneloop.training.batch import Group


def without_faults(
    records: Sequence[Record], answers: Sequence[Sequence[Answer]]
) -> tuple[Sequence[Record], Sequence[Sequence[Answer]]]:
    """The records and episodes that are trained on: an episode with a fault is none of the policy's doing and teaches
    nothing, and a record all of whose episodes have one is left out."""
    if not any(answer.fault for group in answers for answer in group):
        return records, answers
    sound = [[answer for answer in group if answer.fault is None] for group in answers]
    kept = [(record, group) for record, group in zip(records, sound) if group]
    return [record for record, _ in kept], [group for _, group in kept]


def group_of(
    asker: Asker,
    record: Record,
    answers: Sequence[Answer],
    advantages: Sequence[float],
    max_new_tokens: int,
    scale_rewards: bool,
    mask_overlong: bool = False,
    by_turn: bool = True,
) -> Group:
    """The group of the episodes on `record`, with one advantage each.

    `mask_overlong`: see `Group.of`; an episode counts as cut where its last turn was. Where every turn has a reward of
    its own and `by_turn`, `advantages` are put aside, and every turn is trained on as if it were an episode, see
    `turns_apart`.
    """
    if all(answer.trajectory is None for answer in answers):
        return Group.of(
            asker.prompt(record, max_new_tokens), [answer.reply for answer in answers], advantages, mask_overlong
        )
    trajectories = [_trajectory(asker, record, answer) for answer in answers]
    if by_turn and all(turn.reward is not None for t in trajectories for turn in t.turns):
        trajectories, advantages = turns_apart(trajectories, scale_rewards)
    return group_of_trajectories(trajectories, advantages, mask_overlong, f"record {record['id']}")


def turns_apart(trajectories: Sequence[Trajectory], scale_rewards: bool) -> tuple[list[Trajectory], list[float]]:
    """Every turn as a trajectory of its own, in order, and its advantage among the group's turns with the same number
    (a turn that one episode alone reached: 0). So a ratio, like a reward, belongs to a turn."""
    alone = [[Trajectory([turn], t.outcome) for turn in t.turns] for t in trajectories]
    advantages = [[0.0] * len(t.turns) for t in trajectories]
    for number in range(max(map(len, advantages), default=0)):
        there = [e for e, t in enumerate(trajectories) if len(t.turns) > number]
        found = group_advantages([trajectories[e].turns[number].reward for e in there], scale_rewards)
        for e, advantage in zip(there, found.tolist()):
            advantages[e][number] = advantage
    return list(itertools.chain(*alone)), list(itertools.chain(*advantages))


def group_of_trajectories(
    trajectories: Sequence[Trajectory], advantages: Sequence[float], mask_overlong: bool, where: str
) -> Group:
    """The episodes as rows behind the tokens that all their prompts begin with. Raises UserError that names `where`
    for prompts that begin with different tokens."""
    kept = [bool(t.turns) and not (mask_overlong and t.finish_reason == "length") for t in trajectories]
    split = [rows(t.turns) if keep else [] for t, keep in zip(trajectories, kept)]
    prompts = [row.prompt for episode in split for row in episode]
    prompt = _common_start(prompts or [turn.prompt for t in trajectories for turn in t.turns])
    if not prompt:
        raise UserError(
            f"{where}: the prompts of its episodes begin with different tokens, so they cannot be trained on as one "
            "group; let the agent's conversations begin alike (the same system message is enough)"
        )
    placed = [(e, row) for e, episode in enumerate(split) for row in episode or [Row(prompt, [], [], [])]]
    behind = [row.prompt[len(prompt) :] for _, row in placed]
    sampled = [[False] * len(more) + row.sampled for more, (_, row) in zip(behind, placed)]
    episode = [e for e, _ in placed]
    return Group(
        prompt,
        [more + row.ids for more, (_, row) in zip(behind, placed)],
        [_sampled_logprobs(rows_of) for rows_of in split],
        [advantage if keep else 0.0 for advantage, keep in zip(advantages, kept)],
        sampled=None if all(map(all, sampled)) else sampled,
        episode=None if episode == list(range(len(split))) else episode,
    )


def _sampled_logprobs(episode: Sequence[Row]) -> list[float]:
    return [p for row in episode for p, sampled in zip(row.logprobs, row.sampled) if sampled]


def _trajectory(asker: Asker, record: Record, answer: Answer) -> Trajectory:
    if answer.trajectory is not None:
        return answer.trajectory
    return Trajectory([Turn(asker.prompt(record, 0), answer.reply)], answer.outcome)


def _common_start(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The ids that all prompts begin with."""
    if not prompts:
        return []
    first, last = min(prompts), max(prompts)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last))
    return [token for token, _ in same]
