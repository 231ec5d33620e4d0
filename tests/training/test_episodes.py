"""Episodes of several turns as training rows: what is trained on is what was sampled, whatever the rows are, and the
objectives are the papers' with an episode in the place of a reply. Expected numbers come from `sequence_truth`: every
turn by itself, its own prompt and reply, through transformers in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import sequence_truth as truth
import torch
from example_batch import CLIP, LIMIT, TEMPERATURE, update
from sequence_truth import Sampled, gradients, relative_error, tiny_model, token_logprobs
from transformers import PreTrainedModel

from tuneloop.errors import UserError
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.rollout.ask import Answer
from tuneloop.rollout.contract import Reply
from tuneloop.rollout.trajectory import Trajectory, Turn, rows
from tuneloop.tasks.contract import Outcome
from tuneloop.toolcalls import Fault
from tuneloop.training.batch import Group, logprobs_of, micro_batches
from tuneloop.training.episodes import group_of, group_of_trajectories, without_faults
from tuneloop.training.objectives import OBJECTIVES

EARNED = Outcome("legal", 0.0)
KINDS = ("one turn", "goes on", "rewritten", "rewritten, then goes on")
RECORDS = 8
ADVANTAGES = [[1.2, -0.7, -0.5], [-1.4, 0.9, 0.5]]


def episodes() -> list[list[Trajectory]]:
    """Three episodes to each of eight records, of every kind: second prompts that go on from the first turn's tokens,
    and second prompts that leave some of them out. Old log-probabilities put ratios below, in and above the range."""
    draw = torch.Generator().manual_seed(3)
    model = tiny_model()

    def ids(count: int) -> list[int]:
        return torch.randint(0, truth.VOCABULARY, (count,), generator=draw).tolist()

    def turn(prompt: list[int], shift: float) -> Turn:
        reply = ids(1 + int(torch.randint(0, 4, (), generator=draw)))
        with torch.no_grad():
            now = torch.stack(token_logprobs(model, prompt, reply, TEMPERATURE))
        noise = 0.1 * torch.randn(len(reply), generator=draw, dtype=torch.float64)
        return Turn(prompt, Reply(reply, (now + shift + noise).tolist(), "stop"))

    def episode(prompt: list[int], kind: str, shift: float) -> Trajectory:
        turns = [turn(prompt, shift)]
        if kind == "goes on":
            turns.append(turn([*prompt, *turns[0].reply.ids, *ids(3)], shift))
        elif kind != "one turn":
            # The template has dropped the turn's first tokens: what follows is another sequence.
            turns.append(turn([*prompt, 23, *turns[0].reply.ids[2:], *ids(2)], shift))
        if kind == "rewritten, then goes on":
            turns.append(turn([*turns[1].prompt, *turns[1].reply.ids, *ids(1)], shift))
        return Trajectory(turns, EARNED)

    return [
        [
            episode([5, 9, 9, *ids(1 + r % 3)], KINDS[(r + 2 * i) % 4], (-0.15, 0.0, 0.15)[(r // 2 + i) % 3])
            for i in range(3)
        ]
        for r in range(RECORDS)
    ]


EPISODES = episodes()


def group(trajectories: Sequence[Trajectory], advantages: Sequence[float], mask: bool = False) -> Group:
    return group_of_trajectories(trajectories, advantages, mask, "record x")


GROUPS = [group(trajectories, ADVANTAGES[r % 2]) for r, trajectories in enumerate(EPISODES)]


def by_hand(model: PreTrainedModel, trajectory: Trajectory) -> list[torch.Tensor]:
    """Log-probabilities of the episode's sampled tokens, every turn computed by itself."""
    return [p for t in trajectory.turns for p in token_logprobs(model, t.prompt, t.reply.ids, TEMPERATURE)]


def old(trajectory: Trajectory) -> list[float]:
    return [p for t in trajectory.turns for p in t.reply.logprobs]


def expected_value(model: PreTrainedModel, name: str, count: int = RECORDS) -> torch.Tensor:
    """J of the first `count` groups by the paper, one ratio an episode where the objective has one a reply."""
    flat = [(t, a) for r, group in enumerate(EPISODES[:count]) for t, a in zip(group, ADVANTAGES[r % 2])]
    return truth.OBJECTIVES[name](
        [by_hand(model, t) for t, _ in flat], [Sampled([], [], old(t), a) for t, a in flat], CLIP.low, CLIP.high, LIMIT
    )


@cache
def expected_gradients(name: str) -> list[torch.Tensor]:
    model = tiny_model()
    return gradients(model, -expected_value(model, name))


def test_the_example_has_groups_of_unlike_numbers_of_rows_and_of_episodes_in_several_rows() -> None:
    assert {len(g.replies) for g in GROUPS} == {4, 5}
    kinds = [len(rows(t.turns)) for group in EPISODES for t in group]
    assert set(kinds) == {1, 2} and any(g.sampled for g in GROUPS)


@pytest.mark.parametrize(("most", "parts"), [(512, 1), (1, 8)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_the_papers_with_episodes_for_replies_in_1_and_in_8_micro_batches(
    name: str, most: int, parts: int
) -> None:
    assert len(micro_batches(GROUPS, most)) == parts
    log, found = update(tiny_model(), name, GROUPS, most)
    assert relative_error(found, expected_gradients(name)) < 1e-9
    assert log.replies == 3 * RECORDS
    assert log.tokens == sum(t.length for group in EPISODES for t in group)
    assert len(log.ratio) == (log.replies if name == "gspo" else log.tokens)


def test_kl_and_entropy_are_those_of_the_sampled_tokens_alone() -> None:
    model, base = tiny_model(), tiny_model(seed=7)
    groups = GROUPS[:2]
    numbers = logprobs_of(DenseDecoder(base), groups, TEMPERATURE, 9)
    flat = [t for group in EPISODES[:2] for t in group]
    with torch.no_grad():
        base_logp = [[p.item() for p in by_hand(base, t)] for t in flat]
    kl = truth.mean_kl([by_hand(model, t) for t in flat], base_logp)
    turns = [Sampled(turn.prompt, turn.reply.ids, [], 0.0) for t in flat for turn in t.turns]
    value = expected_value(model, "gspo", 2) + 0.3 * truth.mean_entropy(model, turns, TEMPERATURE) - 0.7 * kl
    with_base = [replace(g, base_logprobs=b) for g, b in zip(groups, numbers)]
    _, found = update(model, "gspo", with_base, 9, entropy_bonus=0.3, kl_coefficient=0.7)
    assert relative_error(found, gradients(model, -value)) < 1e-9


def test_log_probabilities_come_back_by_episode_one_a_sampled_token() -> None:
    model = tiny_model()
    found = logprobs_of(DenseDecoder(model), GROUPS, TEMPERATURE, 512)
    for group_numbers, trajectories in zip(found, EPISODES, strict=True):
        for numbers, trajectory in zip(group_numbers, trajectories, strict=True):
            with torch.no_grad():
                assert numbers == pytest.approx([p.item() for p in by_hand(model, trajectory)], rel=1e-9)


def test_episodes_of_one_turn_make_the_very_group_that_replies_make() -> None:
    prompt, replies = [5, 9, 1], [Reply([3, 2], [-1.0, -0.5], "stop"), Reply([4, 4], [-2.0, -0.1], "length")]
    made = [Trajectory([Turn(prompt, reply)], EARNED) for reply in replies]
    for mask in (False, True):
        found = group(made, [1.0, -1.0], mask)
        plain = Group.of(prompt, replies, [1.0, -1.0], mask)
        assert found == plain


def test_rows_behind_the_shared_prompt_hold_every_token_and_mark_what_was_sampled() -> None:
    first, second = Reply([7, 8], [-1.0, -2.0], "stop"), Reply([9], [-3.0], "stop")
    goes_on = Trajectory([Turn([1, 2, 3], first), Turn([1, 2, 3, 7, 8, 4], second)], EARNED)
    rewritten = Trajectory([Turn([1, 2, 3], first), Turn([1, 2, 5, 6], second)], EARNED)
    found = group([goes_on, rewritten], [1.0, -1.0])
    assert found.prompt == [1, 2]
    assert found.replies == [[3, 7, 8, 4, 9], [3, 7, 8], [5, 6, 9]]
    assert found.sampled == [[False, True, True, False, True], [False, True, True], [False, False, True]]
    assert found.episode == [0, 1, 1]
    assert found.old_logprobs == [[-1.0, -2.0, -3.0]] * 2
    assert (found.lengths, found.used, found.tokens) == ([3, 3], 2, 6)
    # The second episode alone, with another advantage.
    left = found.of_places([1], [0.5])
    assert (left.replies, left.episode, left.advantages) == ([[3, 7, 8], [5, 6, 9]], [0, 0], [0.5])
    assert (left.lengths, left.old_logprobs) == ([3], [[-1.0, -2.0, -3.0]])


def test_an_episode_whose_last_turn_the_limit_cut_is_left_out_of_the_loss_whole() -> None:
    model = tiny_model()
    cut = replace(EPISODES[2][1].turns[-1].reply, finish_reason="length")
    spoilt = replace(EPISODES[2][1], turns=[*EPISODES[2][1].turns[:-1], replace(EPISODES[2][1].turns[-1], reply=cut)])
    trio = [EPISODES[2][0], spoilt, EPISODES[2][2]]
    masked = group(trio, ADVANTAGES[0], mask=True)
    assert (masked.used, masked.advantages) == (2, [1.2, 0.0, -0.5])
    assert group(trio, ADVANTAGES[0]).used == 3
    kept = [trio[0], trio[2]]
    value = truth.gspo(
        [by_hand(model, t) for t in kept],
        [Sampled([], [], old(t), a) for t, a in zip(kept, (1.2, -0.5))],
        CLIP.low,
        CLIP.high,
        LIMIT,
    )
    _, found = update(model, "gspo", [masked])
    assert relative_error(found, gradients(model, -value)) < 1e-9


def answer(trajectory: Trajectory) -> Answer:
    return Answer(trajectory.turns[-1].reply, "", Fault("no_call", ""), trajectory.outcome, trajectory)


def test_turns_with_rewards_of_their_own_are_trained_on_as_sequences_of_their_own() -> None:
    # Rewards of the first turns 1, 0, 0.5 and of the second ones 0, 1 (the third episode has none):
    # (r − mean) / std is ±1.2247… and 0, and −1 and 1.
    def scored(trajectory: Trajectory, *rewards: float) -> Answer:
        return answer(replace(trajectory, turns=[replace(t, reward=r) for t, r in zip(trajectory.turns, rewards)]))

    two = [t for group in EPISODES for t in group if len(t.turns) == 2 and len(rows(t.turns)) == 1]
    one = next(t for group in EPISODES for t in group if len(t.turns) == 1)
    answers = [scored(two[0], 1.0, 0.0), scored(two[1], 0.0, 1.0), scored(one, 0.5)]
    made = group_of(SimpleNamespace(), {"id": "x"}, answers, [9.0, 9.0, 9.0], 9, scale_rewards=True)
    high = 1.5**0.5
    assert made.advantages == pytest.approx([high, -1.0, -high, 1.0, 0.0])
    turns = [*two[0].turns, *two[1].turns, *one.turns]
    assert made.lengths == [len(t.reply.ids) for t in turns] and made.episode is None
    model = tiny_model()
    value = truth.gspo(
        [token_logprobs(model, t.prompt, t.reply.ids, TEMPERATURE) for t in turns],
        [Sampled([], [], t.reply.logprobs, a) for t, a in zip(turns, made.advantages)],
        CLIP.low,
        CLIP.high,
        LIMIT,
    )
    _, found = update(model, "gspo", [made])
    assert relative_error(found, gradients(model, -value)) < 1e-9
    whole = group_of(SimpleNamespace(), {"id": "x"}, answers, [1.0, -1.0, 0.0], 9, scale_rewards=True, by_turn=False)
    assert whole.advantages == [1.0, -1.0, 0.0]


def test_a_turn_number_that_one_episode_alone_reached_has_advantage_0() -> None:
    turn = Turn([1, 2], Reply([3], [-1.0], "stop"), 0.7)
    answers = [answer(Trajectory([turn, turn], EARNED)), answer(Trajectory([replace(turn, reward=0.1)], EARNED))]
    made = group_of(SimpleNamespace(), {"id": "x"}, answers, [1.0, -1.0], 9, scale_rewards=False)
    assert made.advantages == pytest.approx([0.3, 0.0, -0.3])


def test_prompts_without_a_common_beginning_are_refused_by_the_records_name() -> None:
    apart = [Trajectory([Turn([i], Reply([3], [-1.0], "stop"))], EARNED) for i in (1, 2)]
    with pytest.raises(UserError, match=r"record x.*begin with different tokens"):
        group(apart, [1.0, -1.0])


def test_episodes_with_a_fault_and_records_with_nothing_else_are_not_trained_on() -> None:
    sound = answer(EPISODES[0][0])
    faulty = answer(replace(EPISODES[0][1], fault="raised"))
    records, answers = without_faults([{"id": "a"}, {"id": "b"}], [[sound, faulty], [faulty, faulty]])
    assert (records, answers) == ([{"id": "a"}], [[sound]])
