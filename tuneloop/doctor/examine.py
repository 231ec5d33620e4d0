"""All checks in order, each kept from taking the others down with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tuneloop.doctor import machine, model, pipeline, prefect, project, versions
from tuneloop.doctor.engine import check_engine
from tuneloop.doctor.finding import Finding, fail, warn
from tuneloop.doctor.gpu import Gpus, Torch, check_gpu, check_ranks, check_torch, look_at_torch, look_for_gpus

if TYPE_CHECKING:
    from tuneloop.params import Params

Check = Callable[[], "Finding | Iterable[Finding | None] | None"]


def examine(folder: Path) -> list[Finding]:
    """Every finding on this machine and on the project in `folder`; outside a project, on the machine alone."""
    with ThreadPoolExecutor() as pool:
        # Two processes that take seconds to answer, while everything else is looked at.
        torch_seen, gpus_seen = pool.submit(look_at_torch), pool.submit(look_for_gpus)
        inside = project.is_project(folder)
        findings = [*_safely("python", versions.check_python), *_safely("packages", versions.check_packages)]
        params: Params | None = None
        if inside:
            written, params = project.check_params(folder)
            findings += written
        else:
            findings.append(
                warn("project", f"{folder} is no tuneloop project", "cd into the project's folder, with its dvc.yaml")
            )
        seen = _model(params)
        findings += _machine(folder, params, seen, gpus_seen.result())
        findings += _computing(params, seen, torch_seen.result(), gpus_seen.result())
        if inside:
            findings += _safely("git", lambda: project.check_git(folder))
            findings += _safely("dvc", lambda: pipeline.check_dvc(folder))
        return findings + _safely("prefect", lambda: prefect.check_prefect(folder))


def _model(params: Params | None) -> model.Model:
    if params is None:
        return model.Model()
    try:
        return model.look_at_model(params)
    except Exception as error:
        return model.Model((_broken("model", error),))


def _machine(folder: Path, params: Params | None, seen: model.Model, gpus: Gpus) -> list[Finding]:
    own_memory = any(gpu.memory_mib is not None for gpu in gpus.found)
    needed = machine.LOOP_MEMORY if own_memory else max(machine.LOOP_MEMORY, seen.needs_memory)
    threads = params.machine.threads if params else None
    return [
        *_safely("memory", lambda: machine.check_memory(needed)),
        *_safely("disk", lambda: machine.check_disk(folder, machine.LOOP_DISK + seen.needs_disk)),
        *_safely("cpu", lambda: machine.check_cpu(threads)),
    ]


def _computing(params: Params | None, seen: model.Model, torch: Torch, gpus: Gpus) -> list[Finding]:
    findings = [*_safely("gpu", lambda: check_gpu(gpus)), *_safely("torch", lambda: check_torch(torch, gpus))]
    if params is None:
        return findings
    findings += _safely("gpu memory", lambda: model.check_fit(seen.needs_memory, gpus))
    findings += _safely("ranks", lambda: check_ranks(params.machine.ranks, gpus))
    findings += _safely("engine", lambda: check_engine(params.rollout.engine, torch, gpus, seen.kind))
    findings += _safely("lora", lambda: model.check_adapter(params.train.lora.rank))
    return findings + list(seen.findings)


def _safely(name: str, check: Check) -> list[Finding]:
    """What the check found; a check that breaks is itself a finding."""
    try:
        found = check()
    except Exception as error:  # whatever this machine does to a check, the others still report
        return [_broken(name, error)]
    if found is None:
        return []
    return [found] if isinstance(found, Finding) else [one for one in found if one is not None]


def _broken(name: str, error: Exception) -> Finding:
    return fail(name, f"could not be checked ({type(error).__name__}: {error})", "report this with the text beside it")
