"""Memory, disk and processor: what there is, and what the loop with this policy needs. GB are 10⁹ bytes."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

from tuneloop.doctor.finding import Finding, fail, ok, warn

LOOP_MEMORY = 2.0
"""GB that the default run takes with its data checks, DVC and the report."""
LOOP_DISK = 1.0
"""GB of data/, .dvc/cache, resume states and Prefect's database, models aside."""
CGROUP = Path("/sys/fs/cgroup")
_LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
_GB = 10**9


def check_memory(needed: float = LOOP_MEMORY, meminfo: str | None = None) -> Finding:
    """Memory that processes can still have, held against what the policy needs (GB)."""
    text = _read(Path("/proc/meminfo")) if meminfo is None else meminfo
    total, available = _bytes(text, "MemTotal"), _bytes(text, "MemAvailable")
    if total is None or available is None:
        return warn("memory", "this system does not say", f"see that {needed:g} GB are free")
    limit, left = _container_memory() if meminfo is None else (total, available)
    total, available = min(total, limit), min(available, left)
    found = f"{available / _GB:.1f} GB available of {total / _GB:.1f}; this policy needs about {needed:g}"
    if available >= needed * _GB:
        return ok("memory", found)
    if total >= needed * _GB:
        return warn("memory", found, "end other programs first")
    return fail("memory", found, "choose a smaller policy.source, or a machine with more memory")


def check_disk(folder: Path, needed: float = LOOP_DISK) -> Finding:
    """Free space where the project lies, held against what data and models will take (GB)."""
    free = shutil.disk_usage(folder).free / _GB
    found = f"{free:.1f} GB free in {folder}; data and models of this policy take up to {needed:g}"
    if free < needed:
        return fail("disk", found, "make room: dvc gc --workspace takes old results away, or use another disk")
    if free < 2 * needed:
        return warn("disk", found, "every variation adds to .dvc/cache; dvc gc --workspace takes old ones away")
    return ok("disk", found)


def check_cpu(threads: int | None) -> Finding:
    """The cores of this process against `machine.threads` (None: not known), and how waiting threads wait."""
    cores = usable_cores()
    policy = os.environ.get("OMP_WAIT_POLICY", "unset")
    found = f"{cores} cores, machine.threads {'unknown' if threads is None else threads}, OMP_WAIT_POLICY {policy}"
    if threads is not None and threads > cores:
        step = f"set machine.threads to {cores} (results repeat bit for bit only for the same number)"
        return warn("cpu", found, step)
    if policy.upper() == "ACTIVE":
        step = "unset OMP_WAIT_POLICY: waiting threads that spin make a shared machine a hundred times slower"
        return warn("cpu", found, step)
    return ok("cpu", found)


def usable_cores() -> int:
    """Cores that this process may use: those it is bound to, or as many as its container's share of time makes up."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    written = _read(CGROUP / "cpu.max").split() or [
        _read(CGROUP / f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    if all(part.isdigit() and part != "0" for part in written) and len(written) == 2:
        return min(bound, math.ceil(int(written[0]) / int(written[1])))
    return bound


def _container_memory() -> tuple[float, float]:
    """Bytes that the control group allows, and how many of them are left; infinite without a limit."""
    for limit, used in _LIMITS:
        allowed, taken = _read(CGROUP / limit).strip(), _read(CGROUP / used).strip()
        if allowed.isdigit() and taken.isdigit():
            return int(allowed), max(0, int(allowed) - int(taken))
    return math.inf, math.inf


def _bytes(text: str, key: str) -> int | None:
    """The bytes of a line `Key:  123 kB`."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == key and rest.split()[:1] and rest.split()[0].isdigit():
            return int(rest.split()[0]) * 1024
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
