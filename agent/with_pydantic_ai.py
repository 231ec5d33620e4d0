"""An agent written with another library, pydantic-ai (`pip install 'pydantic-ai-slim[openai]'`).

    dvc exp run -S rollout.agent=agent.with_pydantic_ai:choose

The library talks to the policy through the client that the episode was given. It gets the task's tools as tools that
somebody else runs, so its run ends with the call.
"""

from __future__ import annotations

from openai import AsyncOpenAI
from pydantic_ai import Agent, DeferredToolRequests, ExternalToolset, ToolDefinition
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from tuneloop.tasks.contract import Record, Task
from tuneloop.toolcalls import ToolCall

# The policy is shown the tools as the task writes them, key by key.
AS_WRITTEN = OpenAIModelProfile(json_schema_transformer=None, openai_supports_strict_tool_definition=False)


async def choose(client: AsyncOpenAI, record: Record, task: Task) -> ToolCall | None:
    """The call that the library came back with; without one the task scores the reply as it is."""
    tools = [
        ToolDefinition(name=f["name"], description=f["description"], parameters_json_schema=f["parameters"])
        for f in (tool["function"] for tool in task.tools)
    ]
    system, user = (message["content"] for message in task.messages(record))
    agent = Agent(
        OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client), profile=AS_WRITTEN),
        system_prompt=system,
        output_type=[str, DeferredToolRequests],
        toolsets=[ExternalToolset(tools)],
        retries=0,
    )
    try:
        output = (await agent.run(user)).output
    except UnexpectedModelBehavior:  # a reply that the library can do nothing with: the policy's doing
        return None
    if isinstance(output, DeferredToolRequests):
        return ToolCall(output.calls[0].tool_name, output.calls[0].args_as_dict())
    return None
