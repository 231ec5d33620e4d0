"""DVC as the flows read it, in a workspace with a pipeline of two quick stages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from served import processes, wait_until

from flows import tidy
from flows.loop import prepare
from flows.pipeline import Stage, Step, read_step, running
from flows.workspace import sole_run
from tuneloop.errors import UserError
from tuneloop.progress import Progress

NOTHING_IMPORTED = """
import importlib, pkgutil, sys
import flows
for module in pkgutil.iter_modules(flows.__path__):
    if module.name != "guard":
        importlib.import_module(f"flows.{module.name}")
print(sorted({"torch", "vllm", "transformers", "great_expectations"} & sys.modules.keys()))
"""

RUN = """
from pathlib import Path
from flows.loop import prepare
from flows.pipeline import running
from flows.workspace import sole_run
here = Path.cwd()
words, expected = prepare(here, {"seed": 99}, None)
with sole_run(here, "a test") as held, running(words, here, held, expected) as output:
    list(output.lines())
    for stage in output.stages():
        list(output.lines())
"""


@pytest.fixture(autouse=True)
def as_started(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_no_flow_imports_what_the_stages_compute_with(environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", NOTHING_IMPORTED], env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_step_lines_are_read_as_the_trainer_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("train", 2) as progress:
        progress.advance(reward=-0.25, length=14.5)
        progress.advance(reward=0.5, length=12.0)
    (line,) = capsys.readouterr().out.splitlines()
    assert read_step(line) == Step(2, 2, {"reward": 0.5, "length": 12.0}, 0)
    assert read_step("held-out reward: -0.225 sampled, +0.150 greedy") is None


def test_stages_come_in_order_with_what_dvc_did_and_the_lines_of_each(toys: Path) -> None:
    def run() -> list[tuple[Stage, list[str]]]:
        with sole_run(toys, "a test") as held, running(["repro"], toys, held) as output:
            assert list(output.lines()) == []
            seen = [(stage, list(output.lines())) for stage in output.stages()]
        assert output.status == 0
        return seen

    first = run()
    assert [stage for stage, _ in first] == [Stage("train", "run"), Stage("compare", "run")]
    assert "[train] 3/3 reward=1.000 left=0s" in first[0][1]
    assert [stage for stage, _ in run()] == [Stage("train", "unchanged"), Stage("compare", "unchanged")]
    (toys / "dvc.lock").unlink()
    assert [stage for stage, _ in run()] == [Stage("train", "cached"), Stage("compare", "cached")]


def test_a_failed_stage_gives_its_own_words_as_the_reason(toys: Path, break_member: Callable[[str], None]) -> None:
    break_member("0.0004 11")
    words, expected = prepare(toys, {"seed": 11}, None)
    with sole_run(toys, "a test") as held, running(words, toys, held, expected) as output:
        list(output.lines())
        seen = {stage.name: list(output.lines()) for stage in output.stages()}
    assert list(seen) == ["train"]
    assert output.failed
    assert output.reason == "[train] error: this one is broken"


def test_a_reader_that_is_killed_leaves_no_process_no_lock_and_no_half_written_out(
    toys: Path, variables: dict[str, str]
) -> None:
    (toys / "slow.py").write_text("import pathlib, time; pathlib.Path('half').write_text('half'); time.sleep(600)")
    slow = {"cmd": f"{sys.executable} slow.py", "params": ["seed"], "outs": ["half"]}
    (toys / "dvc.yaml").write_text(json.dumps({"stages": {"slow": slow}}))
    before = (toys / "params.yaml").read_bytes()
    reader = subprocess.Popen([sys.executable, "-c", RUN], cwd=toys, env=variables)
    wait_until((toys / "half").exists, 60)
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait()
    assert wait_until(lambda: not processes(toys), 60) < 15
    assert not (toys / "half").exists()
    assert not any(json.loads((toys / ".dvc/tmp/rwlock").read_text()).values())
    assert (toys / "params.yaml").read_bytes() == before
    with sole_run(toys, "the next"):
        pass


def test_params_are_put_back_unless_someone_edited_them_meanwhile(toys: Path) -> None:
    path = toys / "params.yaml"
    before = path.read_text()
    written = re.sub(r"^seed: 2026", "seed: 7", before, flags=re.MULTILINE)
    expected = YAML(typ="safe").load(written)
    tidy.begin(toys, expected)
    path.write_text(written)
    assert tidy.tidy(toys) == []
    assert path.read_text() == before

    tidy.begin(toys, expected)
    path.write_text(written.replace("steps: 400", "steps: 401"))
    (said,) = tidy.tidy(toys)
    assert "edited during the run" in said
    assert "steps: 401" in path.read_text()


def test_a_workspace_has_one_run_and_the_second_is_told_whose(tmp_path: Path) -> None:
    refused = pytest.raises(UserError, match=r"flow run red-fox \(process \d+\) is running here")
    with sole_run(tmp_path, "flow run red-fox"), refused, sole_run(tmp_path, "another"):
        pass
    with sole_run(tmp_path, "another"):
        pass
