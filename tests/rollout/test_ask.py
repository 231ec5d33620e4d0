"""Asking a policy: from a record to a scored reply and a row of the reply table."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from policies.tiny_models import qwen3
from transformers import PreTrainedModel

from tuneloop.errors import UserError
from tuneloop.policies.card import PolicyCard
from tuneloop.policies.nano import nano_tokenizer
from tuneloop.policies.policy import Policy
from tuneloop.rollout.ask import Asker
from tuneloop.rollout.contract import Reply, Sampling
from tuneloop.rollout.torch_engine import TorchEngine
from tuneloop.tasks import load_task
from tuneloop.toolcalls import Reasoning, ToolCall, load_dialect

TASK = load_task("tictactoe")
RECORD = TASK.parse("XX./OO./...")
CALL = load_dialect("hermes").render(ToolCall("choose_square", {"square": 3}))


def policy(positions: int = 4096) -> Policy:
    tokenizer = nano_tokenizer(["a few words"], 300)
    model: PreTrainedModel = qwen3(layers=1)
    model.resize_token_embeddings(len(tokenizer))
    model.config.max_position_embeddings = positions
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return Policy(model, tokenizer, PolicyCard("tiny", "hermes", Reasoning("<think>", "</think>"), thinking=True))


class Scripted:
    """An engine that writes the texts it was given, in order; an unfinished one is cut by the limit."""

    def __init__(self, policy: Policy, texts: Sequence[str], finished: bool = True):
        self.policy, self.texts, self.finished = policy, list(texts), finished

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Reply]]:
        return [[self._reply(self.texts.pop(0)) for _ in group] for group in seeds]

    def _reply(self, text: str) -> Reply:
        ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*ids, self.policy.tokenizer.eos_token_id] if self.finished else ids
        return Reply(ids, [-1.0] * len(ids), "stop" if self.finished else "length")

    def weights_changed(self) -> None: ...


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (CALL, "win"),
        (f"<think>\n1 or 3\n</think>\n{CALL}", "win"),
        (f"<think>{CALL}", "no_call"),
        (CALL + CALL, "several_calls"),
        (CALL.replace("3", '"3"'), "bad_arguments"),
        (CALL.replace("3", "1"), "occupied"),
        ("", "no_call"),
    ],
)
def test_a_reply_is_read_and_scored_by_the_task(text: str, outcome: str) -> None:
    asked = policy()
    ((answer,),) = Asker(asked, Scripted(asked, [text]), TASK).ask([RECORD], [[1]], Sampling(64))
    assert (answer.text, answer.outcome.name) == (text, outcome)


def test_a_cut_reply_is_read_like_any_other() -> None:
    asked = policy()
    engine = Scripted(asked, [CALL, CALL[:-5]], finished=False)
    ((whole, broken),) = Asker(asked, engine, TASK).ask([RECORD], [[1, 2]], Sampling(64))
    assert (whole.outcome.name, broken.outcome.name) == ("win", "no_call")


COLUMNS = "id board stratum cluster {} sample prompt_hash text call outcome reward length finish_reason"


def test_a_row_of_the_reply_table_has_the_columns_that_every_reader_expects() -> None:
    asked = policy()
    asker = Asker(asked, Scripted(asked, [CALL]), TASK)
    ((answer,),) = asker.ask([RECORD], [[1]], Sampling(64))
    row = asker.row(RECORD, 2, answer, decoding="sampled")
    ids = asked.prompt_ids(TASK.messages(RECORD), TASK.tools)
    assert list(row) == COLUMNS.format("decoding").split()
    assert row == {
        "id": "XX./OO./...",
        "board": "XX./OO./...",
        "stratum": "4 marks",
        "cluster": TASK.split_key(RECORD),
        "decoding": "sampled",
        "sample": 2,
        "prompt_hash": hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16],
        "text": CALL,
        "call": '{"name":"choose_square","arguments":{"square":3}}',
        "outcome": "win",
        "reward": 1.0,
        "length": len(answer.reply.ids),
        "finish_reason": "stop",
    }
    assert list(asker.row(RECORD, 0, answer, step=5)) == ["step", *COLUMNS.format("").split()]


def test_a_prompt_that_leaves_no_room_for_the_reply_is_refused_by_record() -> None:
    asked = policy()
    length = len(asked.prompt_ids(TASK.messages(RECORD), TASK.tools))
    asked = policy(positions=length + 10)
    asker = Asker(asked, TorchEngine(asked.model, asked.end_ids), TASK)
    ((answer,),) = asker.ask([RECORD], [[1]], Sampling(10))
    assert len(answer.reply.ids) <= 10
    # The prompt was seen before, with a limit that fitted.
    with pytest.raises(UserError, match=rf"record XX\./OO\./\.\.\.: .*{length} tokens.*max_new_tokens=11"):
        asker.ask([RECORD], [[1]], Sampling(11))


def test_every_record_gets_one_answer_a_seed_in_order() -> None:
    asked = policy()
    other = TASK.parse("X.O/.../...")
    answers = Asker(asked, Scripted(asked, ["a", "b", "c"]), TASK).ask([RECORD, other], [[1], [1, 2]], Sampling(9))
    assert [[answer.text for answer in group] for group in answers] == [["a"], ["b", "c"]]
