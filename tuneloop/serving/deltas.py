"""A choice that grows: which pieces of its message are certain already, and the rest when it is whole.

The pieces of `content` and of `reasoning_content` add up to those of the message that is answered without a
stream; a call is one piece. What may still turn out to be a call, a marker, a stop sequence or part of a character
waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuneloop.policies.policy import Policy
from tuneloop.rollout.contract import Drawn, Reply
from tuneloop.serving.choices import Choice, choice_json, read_choice, settled
from tuneloop.serving.request import ChatRequest
from tuneloop.toolcalls import load_dialect
from tuneloop.toolcalls.message import CALL_MARKERS, begun, certain

Entry = dict[str, Any]
"""Of a chunk's `choices`."""


class GrowingChoice:
    """One choice of a stream, from its first token to its last chunk. `choice`: as soon as it is whole."""

    def __init__(self, policy: Policy, request: ChatRequest, index: int):
        self.policy, self.request, self.index = policy, request, index
        self.marked = CALL_MARKERS[0] in load_dialect(policy.card.dialect).system_text([])
        self.choice: Choice | None = None
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self._sent = {"reasoning_content": "", "content": ""}

    def opening(self) -> Entry:
        return self._entry({"role": "assistant", "content": ""})

    def more(self, drawn: Sequence[Drawn]) -> list[Entry]:
        """What these tokens make certain. Tokens behind a stop sequence count for nothing."""
        for one in drawn:
            if self.choice is not None:
                return []
            self.ids.append(one.token)
            self.logprobs.append(one.logprob)
            if one.finish_reason is not None:
                return self.whole(Reply(self.ids, self.logprobs, one.finish_reason))
            if self.request.stop:
                text = settled(self.policy.decode(self.ids))
                if any(stop in text for stop in self.request.stop):
                    return self.whole(Reply(self.ids, self.logprobs, "stop"))
        text = settled(self.policy.decode(self.ids))
        text = text[: len(text) - begun(text, self.request.stop)]
        thought, content = certain(text, self.policy.card.reasoning, bool(self.request.tools), self.marked)
        return self._grown({"reasoning_content": thought, "content": content})

    def whole(self, reply: Reply) -> list[Entry]:
        """Everything that is left, where the reply is known."""
        if self.choice is not None:
            return []
        return self.finish(read_choice(self.policy, self.request, reply))

    def finish(self, choice: Choice) -> list[Entry]:
        self.choice = choice
        message = choice.message
        entries = self._grown({key: message.get(key) or "" for key in self._sent})
        for i, call in enumerate(message.get("tool_calls", [])):
            entries.append(self._entry({"tool_calls": [call | {"index": i}]}))
        last = choice_json(self.policy, self.request, self.index, choice)
        del last["message"]
        return [*entries, last | {"delta": {}}]

    def _grown(self, parts: dict[str, str]) -> list[Entry]:
        entries = []
        for key, text in parts.items():
            sent = self._sent[key]
            if len(text) > len(sent) and text.startswith(sent):
                entries.append(self._entry({key: text[len(sent) :]}))
                self._sent[key] = text
        return entries

    def _entry(self, delta: dict[str, Any]) -> Entry:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": None}
