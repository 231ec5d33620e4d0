"""The trainer: steps of rollout, scoring, advantages and updates, with resume.

    step:  records → n replies each → outcomes → advantages in the group → updates of the policy
    sft:   … outcomes → the best reply of each group → updates            (or: examples from a file → updates)
    dpo:   … outcomes → the best and the worst of each group → updates    (or: pairs from a file → updates)

Everything a step draws comes from (seed, step) alone, so the state that a resumed run needs is the
weights, the optimizer and the tables written so far.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import Any

import torch

from tuneloop.agents.faults import fault_counts
from tuneloop.errors import UserError
from tuneloop.evaluation.evaluate import greedy_rows, summarise
from tuneloop.params import RolloutParams, TrainParams
from tuneloop.policies.adapters import adapters_off, has_adapters
from tuneloop.policies.decoder import DenseDecoder
from tuneloop.policies.decoders import load_decoder
from tuneloop.rollout.ask import Answer, Asker
from tuneloop.rollout.contract import Engine, Sampling, reply_seed
from tuneloop.tasks.contract import Record
from tuneloop.training.advantages import group_advantages
from tuneloop.training.batch import Group, logprobs_of
from tuneloop.training.episodes import group_of, without_faults
from tuneloop.training.history import history_row
from tuneloop.training.objectives import Clip, objective_named
from tuneloop.training.order import Visits, passes
from tuneloop.training.ranks import ALONE, Ranks, hand_over_gradients, share_asking, spread, trained_parts, whole
from tuneloop.training.schedule import kl_coefficient, learning_rate
from tuneloop.training.selection import IMITATION, select
from tuneloop.training.state import load_trained_state, trained_state
from tuneloop.training.tables import Tables, evaluation_row, timing_row
from tuneloop.training.update import UpdateLog, accumulate, apply, changed_share

COMPUTE = {"float32": None, "bfloat16": torch.bfloat16}
"""By `train.dtype`, what the forward pass is told; None: the type of the weights, which are float32."""


class Trainer:
    """One training run over `records`, from wherever `restore` left it to `params.steps`."""

    def __init__(
        self,
        asker: Asker,
        engine: Engine,
        records: Sequence[Record],
        heldout: Sequence[Record],
        params: TrainParams,
        rollout: RolloutParams,
        seed: int,
        ranks: Ranks = ALONE,
        examples: Sequence[Group] = (),
    ):
        """`asker.policy` must hold the base policy's weights (and its adapters, see `tuneloop.training.lora`), also
        where `restore` is to follow: the copy that the KL term and DPO measure against is made here. Several `ranks`
        each make a trainer of the same arguments and call the same methods; the policy is spread over them here.
        With `examples` (see `tuneloop.training.examples`; for `sft` and `dpo`) updates are made on them, in shuffled
        passes, and only the steps whose replies are kept roll out, for the reward curve. Raises UserError for sampling
        that the log-probabilities would not describe."""
        if rollout.top_p < 1 or rollout.top_k:
            raise UserError(
                f"rollout.top_p={rollout.top_p}, rollout.top_k={rollout.top_k}: training needs the whole distribution "
                "(top_p 1, top_k 0), else the sampled replies do not come from the policy whose probabilities are used"
            )
        self.asker, self.engine, self.ranks = asker, engine, ranks
        self.records, self.heldout, self.examples = records, heldout, examples
        self.params, self.rollout, self.seed = params, rollout, seed
        self.sampling = Sampling(rollout.max_new_tokens, rollout.temperature)
        self.model = asker.policy.model
        self.decoder = load_decoder(self.model, COMPUTE[params.dtype], params.checkpoint_layers)
        self.base = None
        if (params.kl_coefficient or params.algorithm == "dpo") and not has_adapters(self.model):
            self.base = load_decoder(copy.deepcopy(self.model).requires_grad_(False), COMPUTE[params.dtype])
        self.spread = spread(self.model, ranks)
        share_asking(asker, ranks)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.parts = trained_parts(self.parameters)
        # 0.99 instead of 0.999: a run of a few hundred steps must forget its first gradients.
        self.optimizer = torch.optim.AdamW(
            self.parts, lr=params.lr, betas=(0.9, 0.99), weight_decay=params.weight_decay, fused=True
        )
        self.step = 0
        self.visits = Visits(asker.reward_range)
        self.tables = Tables()

    def state(self) -> dict[str, Any]:
        """All that a run needs to go on from here, on however many ranks; `torch.save` it."""
        return {
            "step": self.step,
            **trained_state(self.model, self.optimizer, self.parameters),
            "visits": self.visits.seen,
            "tables": vars(self.tables),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave, on however many ranks."""
        self.step = state["step"]
        load_trained_state(state, self.model, self.optimizer, self.parameters)
        self.visits.seen = state["visits"]
        self.tables = Tables(**state["tables"])
        self._weights_changed()

    def run(self) -> Iterator[dict[str, Any]]:
        """Take the steps that are left; yields the history row of each."""
        if self.step == 0:
            self._evaluate()
        while self.step < self.params.steps:
            self._take_step()
            yield self.tables.history[-1]

    def _take_step(self) -> None:
        started = time.perf_counter()
        keep = (self.step + 1) % self.params.keep_replies_every == 0 or self.step == 0
        records, answers = self._roll_out() if keep or not self.examples else ([], [])
        rolled = time.perf_counter()
        trained, sound = without_faults(records, answers)
        rewards = self._rewards(sound)
        for record, group in zip(trained, rewards):
            self.visits.note(record, group)
        advantages = [group_advantages(group, self.params.scale_rewards).tolist() for group in rewards]
        mask = self.params.overlong == "mask"
        groups = [
            group_of(
                self.asker,
                r,
                group,
                advantage,
                self.rollout.max_new_tokens,
                self.params.scale_rewards,
                mask,
                by_turn=self.params.algorithm not in IMITATION,
            )
            for r, group, advantage in zip(trained, sound, advantages)
        ]
        count = self.params.boards_per_step
        if self.examples:
            used = passes(self.examples, self.step * count, count, self.seed)
        else:
            used = select(self.params.algorithm, groups, rewards, self.params.sft_least_reward)[:count]
        before = [p.detach().clone() for p in self.parts]
        lr = learning_rate(self.params, self.step)
        logs = self._update(self._with_logprobs(used), lr)
        self._weights_changed()
        self.step += 1
        row = history_row(
            self.step,
            self.asker.outcomes,
            sound,
            sum(not any(advantage) for advantage in advantages),
            logs,
            lr,
            changed_share(before, self.parts, self.spread),
            mask,
            self.params.algorithm,
        )
        if self.rollout.agent is not None:
            row |= fault_counts(answers)
        self.tables.history.append(row)
        if keep:
            for record, group in zip(records, answers):
                for i, answer in enumerate(group):
                    self.tables.replies.append(self.asker.row(record, i, answer, step=self.step))
        ended = time.perf_counter()
        self.tables.timings.append(timing_row(self.step, rolled - started, ended - rolled, answers))
        if self.step % self.params.evaluate_every == 0 or self.step == self.params.steps:
            self._evaluate()

    def _roll_out(self) -> tuple[list[Record], list[list[Answer]]]:
        count = self.params.boards_per_step * self.params.oversample
        if self.params.visit == "passes":
            records = passes(self.records, self.step * count, count, self.seed)
        else:
            records = self.visits.choose(self.records, count, self.seed, self.step)
        seeds = [
            # The place in the batch tells a record apart that a step visits twice.
            [reply_seed(self.seed, "train", self.step, place, record["id"], i) for i in range(self.params.group_size)]
            for place, record in enumerate(records)
        ]
        with whole(self.model):
            return records, self.asker.ask(records, seeds, self.sampling)

    def _rewards(self, answers: Sequence[Sequence[Answer]]) -> list[list[float]]:
        """What training is told that the replies earned."""
        rewards = [[a.outcome.reward for a in group] for group in answers]
        if self.params.shuffle_rewards:
            flat = [r for group in rewards for r in group]
            Random(f"{self.seed}/shuffle/{self.step}").shuffle(flat)
            dealt = iter(flat)
            rewards = [[next(dealt) for _ in group] for group in rewards]
        return rewards

    def _with_logprobs(self, groups: Sequence[Group]) -> Sequence[Group]:
        """The groups with what the options want to know of them from before the step's first update."""

        def numbers(decoder: DenseDecoder) -> list[list[list[float]]]:
            with whole(decoder.model):
                mine = self.ranks.share(groups)
                found = logprobs_of(decoder, mine, self.rollout.temperature, self.params.micro_batch_replies)
            return [group for share in self.ranks.gather(found) for group in share]

        imitation = self.params.algorithm in IMITATION
        if self.params.old_logprobs == "trainer" and not imitation:  # which has no ratio
            groups = [
                replace(group, old_logprobs=old, engine_logprobs=group.old_logprobs)
                for group, old in zip(groups, numbers(self.decoder))
            ]
        if kl_coefficient(self.params, self.step) or self.params.algorithm == "dpo":
            with nullcontext() if self.base else adapters_off(self.model):
                found = numbers(self.base or self.decoder)
            groups = [replace(group, base_logprobs=base) for group, base in zip(groups, found)]
        return groups

    def _update(self, groups: Sequence[Group], lr: float) -> list[UpdateLog]:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        logs: list[UpdateLog] = []
        for _ in range(self.params.epochs_per_step):
            for u in range(self.params.updates_per_step):
                part = groups[u :: self.params.updates_per_step]
                if not part:
                    continue
                log = accumulate(
                    self.decoder,
                    part,
                    objective_named(self.params.algorithm, self.params.dpo_beta),
                    Clip(self.params.clip_low, self.params.clip_high),
                    self.rollout.temperature,
                    self.rollout.max_new_tokens,
                    self.params.micro_batch_replies,
                    self.params.entropy_bonus,
                    kl_coefficient(self.params, self.step),
                    self.params.engine_ratio_cap,
                    self.ranks,
                )
                if self.examples:
                    log.gap_sum = log.gap_max = None
                elif not logs:
                    self._require_agreement(log)
                try:
                    hand_over_gradients(self.parameters, self.parts)
                    apply(self.parts, self.optimizer, self.params.max_grad_norm, log, self.spread)
                except FloatingPointError:
                    raise UserError(
                        f"train: the gradient of step {self.step + 1} is not finite; lower train.lr ({self.params.lr})"
                    ) from None
                logs.append(log)
        return logs

    def _weights_changed(self) -> None:
        with whole(self.model):
            self.engine.weights_changed()

    def _require_agreement(self, log: UpdateLog) -> None:
        mean = log.gap_sum / log.tokens
        if not mean <= self.params.engine_gap_limit:
            raise UserError(
                f"train: engine and trainer disagree at step {self.step + 1}: mean |Δ log p| {mean:.3g}, largest "
                f"{log.gap_max:.3g}, limit train.engine_gap_limit={self.params.engine_gap_limit:g}; the engine may "
                "hold old weights"
            )

    def _evaluate(self) -> None:
        with whole(self.model):
            rows = greedy_rows(self.asker.single, self.heldout, self.rollout.max_new_tokens)
        self.tables.evaluations.append(evaluation_row(self.step, summarise(rows, self.asker.task), self.asker.task))
