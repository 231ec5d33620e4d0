"""loop: the pipeline once, watched.

    python -m flows.loop                     # needs a Prefect server; `make ui` starts one, with this as a deployment

Without overrides and without a name it is `dvc repro`; with either it is a DVC experiment
(`dvc exp run -n NAME -S key=value …`), after which params.yaml is as it was. A stage is a task: what
DVC skips is there too, as Cached. Cancelled in the middle of training, the same run later continues
from the training's last state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Completed, Failed, State

from flows import shown
from flows.form import Overrides, check_changes, dvc_settings
from flows.pipeline import Output, Stage, read_step, running
from flows.workspace import check_name, experiments, head, sole_run
from tuneloop.errors import UserError


@flow(name="loop", retries=0, persist_result=False)
def loop(overrides: Overrides = Overrides(), experiment: str | None = None) -> State:  # type: ignore[valid-type]  # noqa: B008
    """Run boards → … → compare in the current folder, as far as DVC finds it needed.

    overrides: what differs from params.yaml, by section. experiment: a name for it in `dvc exp show`.
    """
    workspace = Path.cwd()
    try:
        changes = overrides.changes()
        with sole_run(workspace, f"flow run {flow_run.name}") as held:
            words, expected = prepare(workspace, changes, experiment)
            with running(words, workspace, held, expected) as output:
                ended = watch(output)
        for note in output.notes:
            get_run_logger().warning(note)
        if isinstance(ended, State):
            return ended
        title = f"Experiment {output.experiment}" if output.experiment else "Parameters as in params.yaml"
        return Completed(message=shown.show_results(workspace, title, str(flow_run.id)))
    except UserError as error:
        return Failed(message=str(error))


def prepare(
    workspace: Path, changes: Mapping[str, Any], experiment: str | None
) -> tuple[list[str], dict[str, Any] | None]:
    """Check what can be checked before DVC starts. DVC's words, and what an experiment will write into params.yaml.
    Raises UserError."""
    expected = check_changes(workspace, changes)
    if not changes and experiment is None:
        return ["repro"], None
    head(workspace)
    if experiment is None:
        return ["exp", "run", *dvc_settings(changes)], expected
    if check_name(experiment) in experiments(workspace):
        raise UserError(
            f"experiment {experiment!r} exists already; choose another name, "
            f"or remove it with `dvc exp remove {experiment}`"
        )
    return ["exp", "run", "--name", experiment, *dvc_settings(changes)], expected


def watch(output: Output) -> State | None:
    """Turn a running DVC into tasks, one a stage; a Failed state if it did not end well."""
    logger = get_run_logger()
    for line in output.lines():
        logger.info(line)
    for stage in output.stages():
        named = run_stage.with_options(name=stage.name, task_run_name=stage.name)
        if (state := named(stage, output, return_state=True)).is_failed():
            return Failed(message=f"{stage.name}: {state.message}")
    return Failed(message=output.reason) if output.failed else None


@task(cache_policy=NO_CACHE, retries=0, persist_result=False)
def run_stage(stage: Stage, output: Output) -> State:
    """One stage from DVC's first line about it to its last; its log lines as they come."""
    logger = get_run_logger()
    progress = shown.ProgressShown(stage.name)
    for line in output.lines():
        logger.info(line)
        if step := read_step(line):
            progress.show(step)
    if output.failed:
        return Failed(message=output.reason)
    if stage.how == "run":
        return Completed(message="run")
    said = "nothing it depends on has changed" if stage.how == "unchanged" else "taken from DVC's cache of earlier runs"
    return Completed(name="Cached", message=said)


if __name__ == "__main__":
    loop()
