"""From a reply to one valid tool call, or to the reason why it holds none.

1. The reasoning is cut out; where it never closes there is no call. (Servers for some families let
   an opening `<tool_call>` end the reasoning; here a call inside reasoning is no call.)
2. The dialect finds the calls. Prose around the one call is allowed where the dialect marks calls.
   A call that is opened and never closed is no call; a closed one that is not in the dialect's form
   has bad arguments, whatever tool it names; two openings are several calls, whatever stands between them.
3. The call must name one of the tools; then its arguments are decoded, and must fit that tool's
   JSON Schema.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuneloop.artifacts import compact_json
from tuneloop.toolcalls.contract import Dialect, Fault, Reasoning, Tool, ToolCall
from tuneloop.toolcalls.reasoning import without_reasoning
from tuneloop.toolcalls.schema import parameters_of, problem_with


def read_reply(text: str, dialect: Dialect, tools: Sequence[Tool], reasoning: Reasoning | None) -> ToolCall | Fault:
    """The one valid call in `text` (the reply as decoded, without the end token), or a Fault.

    Never raises, whatever the text, and takes time in proportion to its length. `tools` must be
    well-formed definitions; `reasoning` is None for a policy without reasoning markers.
    """
    answer = without_reasoning(text, reasoning)
    if answer is None:
        return Fault("no_call", "the reasoning never closes")
    written = dialect.find(answer)
    if isinstance(written, Fault):
        return written
    parameters = parameters_of(tools, written.name)
    if parameters is None:
        return Fault("wrong_tool", f"there is no tool {written.name[:80]!a}")
    try:
        arguments = written.decode(parameters)
    except ValueError as error:
        return Fault("bad_arguments", str(error)[:200])
    problem = problem_with(arguments, parameters)
    return ToolCall(written.name, arguments) if problem is None else Fault("bad_arguments", problem)


def calls_as_json(reading: ToolCall | Fault) -> str | None:
    """The `call` column of a reply table: the valid call as compact JSON, None for a fault."""
    if isinstance(reading, Fault):
        return None
    return compact_json({"name": reading.name, "arguments": reading.arguments})
