"""The body of `POST /v1/chat/completions`, checked before anything else happens.

What cannot be honoured is refused by name, with the reason: a parameter that is silently ignored would make the
reply a wrong answer. (Reference: platform.openai.com/docs/api-reference/chat/create.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

from jsonschema import Draft202012Validator, SchemaError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuneloop.serving.errors import bad_request
from tuneloop.toolcalls import Tool

TEMPERATURE_OF_GREEDY = 1e-4
"""Temperatures below are greedy: dividing logits by less overflows."""
MAX_N = 128
MAX_SCHEMA_DEPTH = 32


@dataclass(frozen=True)
class ChatRequest:
    """A request that can be honoured. None: the client left it to the server. `tool_choice` is "none", "auto",
    "required", or, with `named`, the name of the one function that must be called."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[Tool]
    tool_choice: str
    named: bool
    n: int
    seed: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_tokens: int | None
    stop: tuple[str, ...]
    logprobs: bool
    stream: bool
    include_usage: bool
    extension: bool

    @cached_property
    def tools_text(self) -> str:
        """The tools as JSON."""
        return json.dumps(self.tools)

    @property
    def takes_any_reply(self) -> bool:
        """Whether a reply without a call is an answer too."""
        return self.tool_choice != "required" and not self.named


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Text(_Part):
    type: Literal["text"]
    text: str


class _Function(_Part):
    name: str
    arguments: str


class _Call(_Part):
    model_config = ConfigDict(extra="ignore")
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Message(_Part):
    # Clients send back whole messages that they got, with fields that say nothing (refusal, annotations, …).
    model_config = ConfigDict(extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Text] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class _Definition(_Part):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(_Part):
    type: Literal["function"]
    function: _Definition


class _Name(_Part):
    name: str


class _Named(_Part):
    type: Literal["function"]
    function: _Name


class _StreamOptions(_Part):
    model_config = ConfigDict(extra="ignore")
    include_usage: bool | None = None


class _TextFormat(_Part):
    type: Literal["text"]


class _Extension(_Part):
    tokens: bool = False


class _Body(_Part):
    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: Annotated[list[_Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _Named | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(max_length=4)] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    # The strict reader takes one call a reply, so there are never parallel ones; either value holds.
    parallel_tool_calls: bool | None = None
    # Only their neutral values: an engine has no penalties, biases or constrained decoding.
    frequency_penalty: Literal[0, 0.0] | None = None
    presence_penalty: Literal[0, 0.0] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    response_format: _TextFormat | None = None
    # They say nothing about the reply.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    tuneloop: _Extension | None = None


def parse_request(raw: bytes) -> ChatRequest:
    """The request in `raw` (JSON). Raises ApiError 400 that names the parameter, for whatever else it holds."""
    tree = _json(raw)
    try:
        body = _Body.model_validate(tree)
    except ValidationError as error:
        raise _refusal(error) from None
    if body.top_logprobs:
        reason = "top_logprobs must be 0: the engine keeps the log-probability of the sampled token alone"
        raise bad_request(reason, "top_logprobs", "unsupported_value")
    if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
        raise bad_request("max_tokens and max_completion_tokens differ; give one of them", "max_tokens")
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if not all(stop):
        raise bad_request("a stop sequence is empty", "stop")
    if body.stream_options and not body.stream:
        raise bad_request("stream_options goes with stream: true", "stream_options")
    # As the client wrote them, key by key: the template shows them to the policy.
    tools: list[Tool] = tree.get("tools") or []
    _check_tools(tools)
    choice, named = _tool_choice(body, tools)
    return ChatRequest(
        model=body.model,
        messages=_messages(body.messages),
        tools=[] if choice == "none" and not named else tools,
        tool_choice=choice,
        named=named,
        n=body.n or 1,
        seed=body.seed,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=tuple(stop),
        logprobs=bool(body.logprobs),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        extension=bool(body.tuneloop and body.tuneloop.tokens),
    )


def _json(raw: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(raw, parse_constant=_not_json)
        if b"\\ud" in raw.lower():
            json.dumps(tree, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not usable JSON: {error}"[:300]) from None
    if not isinstance(tree, dict):
        raise bad_request("the body must be a JSON object")
    return tree


def _not_json(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _refusal(error: ValidationError) -> Exception:
    first = error.errors(include_url=False, include_context=False)[0]
    # Without the names of the branches that pydantic tried.
    param = ".".join(str(p) for p in first["loc"] if isinstance(p, int) or str(p).isidentifier())
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        return bad_request(f"parameter {param} is not supported", param, "unknown_parameter")
    if first["type"] == "missing":
        return bad_request(f"parameter {param} is missing", param, "missing_required_parameter")
    return bad_request(f"parameter {param}: {first['msg']}", param, "invalid_value")


def _check_tools(tools: list[Tool]) -> None:
    """Refuses what would fail only while a reply is read: no schema, a reference, too deep a one."""
    try:
        found = _tools_problem(json.dumps(tools))
    except RecursionError:
        found = "nested too deep", "tools.0.function.parameters"
    if found is not None:
        raise bad_request(*found)


@lru_cache(256)  # it takes longer than all the rest of a request, and clients send the same few tools
def _tools_problem(text: str) -> tuple[str, str] | None:
    """What is wrong, and where."""
    tools = json.loads(text)
    for i, tool in enumerate(tools):
        problem = _schema_problem(tool["function"].get("parameters") or {})
        if problem is not None:
            return problem, f"tools.{i}.function.parameters"
    if len({tool["function"]["name"] for tool in tools}) < len(tools):
        return "two tools have the same name", "tools"
    return None


def _schema_problem(schema: dict[str, Any]) -> str | None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"not a JSON Schema: {error.message}"[:300]
    except RecursionError:
        return "nested too deep"
    stack: list[tuple[Any, int]] = [(schema, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > MAX_SCHEMA_DEPTH:
            return f"nested more than {MAX_SCHEMA_DEPTH} deep"
        if isinstance(value, dict):
            if any(isinstance(value.get(word), str) for word in ("$ref", "$dynamicRef")):
                return "$ref is not supported; write the schema out"
            stack += [(v, depth + 1) for v in value.values()]
        elif isinstance(value, list):
            stack += [(v, depth + 1) for v in value]
    return None


def _tool_choice(body: _Body, tools: list[Tool]) -> tuple[str, bool]:
    choice = body.tool_choice
    if isinstance(choice, _Named):
        name = choice.function.name
        if all(tool["function"]["name"] != name for tool in tools):
            raise bad_request(f"tool_choice names {name!r}, which is not among the tools", "tool_choice")
        return name, True
    if choice == "required" and not tools:
        raise bad_request("tool_choice required goes with tools", "tool_choice")
    return choice or ("auto" if tools else "none"), False


def _messages(given: list[_Message]) -> list[dict[str, Any]]:
    """As chat templates take them: one system message at most, at the start; contents are texts."""
    found: list[dict[str, Any]] = []
    open_calls: set[str] = set()
    for i, message in enumerate(given):
        where = f"messages.{i}"
        role = "system" if message.role == "developer" else message.role
        content = message.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        if content is None and not message.tool_calls:
            raise bad_request(f"{where}.content is missing", f"{where}.content")
        if message.tool_calls and role != "assistant":
            raise bad_request("only an assistant message may have tool_calls", f"{where}.tool_calls")
        if role == "system" and found:
            if len(found) > 1 or found[0]["role"] != "system":
                # Many templates drop them without a word.
                raise bad_request("system messages must come before all others", f"{where}.role")
            found[0]["content"] += f"\n\n{content}"
            continue
        entry: dict[str, Any] = {"role": role, "content": content or ""}
        if role == "tool":
            if message.tool_call_id not in open_calls:
                reason = "a tool message must answer, by tool_call_id, a call of an earlier assistant message"
                raise bad_request(reason, f"{where}.tool_call_id")
            entry["tool_call_id"] = message.tool_call_id
        if message.reasoning_content and role == "assistant":
            entry["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            entry["tool_calls"] = [_call(call, where) for call in message.tool_calls]
            open_calls |= {call.id for call in message.tool_calls}
        found.append(entry)
    return found


def _call(call: _Call, where: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments, parse_constant=_not_json)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise bad_request("the arguments of a call are not a JSON object", f"{where}.tool_calls")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
