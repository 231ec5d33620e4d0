"""litellm, unchanged, against the server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI


@pytest.mark.slow  # importing it takes 10 s and more
def test_litellm_gets_what_the_official_client_gets_and_asks_nobody_else(
    url: str, client: OpenAI, asked: dict[str, Any], environment: dict[str, str]
) -> None:
    seed, expected = next(
        (seed, choice)
        for seed in range(40)
        for choice in client.chat.completions.create(**asked, seed=seed).choices
        if choice.finish_reason == "tool_calls"
    )
    script = Path(__file__).with_name("litellm_script.py")
    # litellm looks its prices up in the web when it is imported, unless told to use its own copy.
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    done = subprocess.run(
        [sys.executable, str(script), url],
        input=json.dumps(asked | {"seed": seed}),
        env=environment | quiet,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    arguments = expected.message.tool_calls[0].function.arguments
    assert (answer["arguments"], answer["streamed"], answer["finish_reason"]) == (arguments, arguments, "tool_calls")
    assert answer["tried"] == []
