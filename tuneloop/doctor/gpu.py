"""GPUs, their driver, and whether the installed torch can use them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

from tuneloop.doctor.finding import Finding, fail, ok, warn

QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader,nounits"]
OLDEST_DRIVER = {13: (580, 65, 6), 12: (525, 60, 13)}
"""By CUDA's major version, on Linux (CUDA Toolkit release notes, table of minimum driver versions)."""
PROBE_SECONDS = 120.0
PROBE = """
import json
import torch
usable = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "usable": usable,
    "archs": torch.cuda.get_arch_list() if usable else [],
}))
"""


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver names it. `memory_mib` is None where CPU and GPU share one memory."""

    name: str
    memory_mib: int | None
    driver: str
    capability: tuple[int, int] | None


@dataclass(frozen=True)
class Gpus:
    """What nvidia-smi says: the GPUs, or why there are none."""

    found: tuple[Gpu, ...] = ()
    complaint: str = ""


@dataclass(frozen=True)
class Torch:
    """The installed torch, as a process of its own sees it; `error` is empty if it could be imported."""

    version: str = ""
    cuda: str | None = None
    usable: bool = False
    archs: tuple[str, ...] = field(default=())
    error: str = ""


def look_for_gpus() -> Gpus:
    """The GPUs that nvidia-smi tells of; none where there is no nvidia-smi."""
    if not shutil.which(QUERY[0]):
        return Gpus()
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, errors="replace", timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Gpus(complaint=f"nvidia-smi gave no answer ({error})")
    if answer.returncode:
        return Gpus(complaint=" ".join((answer.stdout + answer.stderr).split()) or f"status {answer.returncode}")
    return parse_gpus(answer.stdout)


def parse_gpus(text: str) -> Gpus:
    """The GPUs in the answer to `QUERY`. Fields that a GPU does not have read `[N/A]`."""
    gpus = []
    for line in filter(None, map(str.strip, text.splitlines())):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4:
            return Gpus(complaint=line)
        name, memory, driver, capability = parts
        major, _, minor = capability.partition(".")
        known = major.isdigit() and minor.isdigit()
        gpus.append(
            Gpu(name, int(memory) if memory.isdigit() else None, driver, (int(major), int(minor)) if known else None)
        )
    return Gpus(tuple(gpus))


def look_at_torch() -> Torch:
    """Import torch in a process of its own: a build that crashes or hangs is then a finding too."""
    try:
        ran = subprocess.run(
            [sys.executable, "-c", PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Torch(error=f"no answer ({error})")
    if ran.returncode:
        said = ran.stderr.strip().splitlines()
        return Torch(error=said[-1] if said else f"ended with status {ran.returncode}")
    try:
        seen = json.loads(ran.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return Torch(error=f"said {ran.stdout[-200:]!r}")
    return Torch(seen["version"], seen["cuda"], seen["usable"], tuple(seen["archs"]))


def check_gpu(gpus: Gpus) -> Finding:
    """Which GPUs there are; FAIL where the driver does not answer."""
    if gpus.complaint:
        return fail(
            "gpu", gpus.complaint, "the driver does not answer: reinstall it or restart the machine (docs/gpu.md)"
        )
    if not gpus.found:
        return ok("gpu", "none (no nvidia-smi): the loop runs on the CPU")
    return ok("gpu", "; ".join(_described(gpu) for gpu in gpus.found))


def check_torch(torch: Torch, gpus: Gpus) -> Finding:
    """Whether torch can be imported, and computes on the GPU if there is one."""
    if torch.error:
        return fail("torch", f"cannot be imported: {torch.error}", "make venv; on a GPU machine see docs/gpu.md")
    found = f"{torch.version}, built for {f'CUDA {torch.cuda}' if torch.cuda else 'the CPU'}"
    if not gpus.found:
        return ok("torch", found)
    if torch.cuda is None:
        step = "install torch from PyPI or from a CUDA index (docs/gpu.md)"
        return warn("torch", f"{found}: it will not use {gpus.found[0].name}", step)
    oldest = OLDEST_DRIVER.get(int(torch.cuda.split(".")[0]))
    if oldest and _numbers(gpus.found[0].driver) < oldest:
        wanted = ".".join(map(str, oldest[:1]))
        step = f"update the driver to {wanted} or newer, or install a torch built for an older CUDA (docs/gpu.md)"
        return fail("torch", f"{found}; driver {gpus.found[0].driver} is too old for that", step)
    if not torch.usable:
        step = "see that CUDA_VISIBLE_DEVICES is not empty and that a container was started with its GPUs (docs/gpu.md)"
        return fail("torch", f"{found}, but finds no GPU", step)
    unfit = [gpu for gpu in gpus.found if gpu.capability and not has_code_for(torch.archs, gpu.capability)]
    if unfit:
        named = f"{unfit[0].name} ({'.'.join(map(str, unfit[0].capability or ()))})"
        step = "install a torch that is built for this GPU (docs/gpu.md)"
        return fail("torch", f"{found} for {', '.join(torch.archs)}: nothing that {named} can run", step)
    return ok("torch", found)


def check_ranks(ranks: int, gpus: Gpus) -> Finding | None:
    """Whether every one of `machine.ranks` has a GPU of its own; None for one rank, and without GPUs."""
    if ranks == 1 or not gpus.found:
        return None
    found = f"machine.ranks {ranks}, {len(gpus.found)} GPUs"
    if ranks > len(gpus.found):
        return fail("ranks", found, f"set machine.ranks to {len(gpus.found)}: one a GPU")
    return ok("ranks", found)


def has_code_for(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether a build for `archs` (`sm_90`, `compute_120`) runs on a GPU of this compute capability.

    Machine code runs on the same major version with the same or a higher minor one; code ending in a letter on
    exactly its own. PTX (`compute_`) is translated for everything newer. (CUDA C++ Programming Guide, "Binary
    Compatibility" and "PTX Compatibility".) Nothing known about the build counts as fitting.
    """
    if not archs:
        return True
    for arch in archs:
        kind, _, number = arch.partition("_")
        exact = number.rstrip("0123456789") != ""
        digits = number if not exact else number.rstrip("abcdefghijklmnopqrstuvwxyz")
        built = (int(digits[:-1]), int(digits[-1]))
        if built == capability or (kind == "compute" and not exact and built <= capability):
            return True
        if not exact and built[0] == capability[0] and built[1] <= capability[1]:
            return True
    return False


def _described(gpu: Gpu) -> str:
    memory = "memory shared with the CPU" if gpu.memory_mib is None else f"{gpu.memory_mib / 1024:.0f} GiB"
    return f"{gpu.name}, {memory}, driver {gpu.driver}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
