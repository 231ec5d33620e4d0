"""Where and with what a report was made: versions, hardware, times. Only the HTML report quotes
these; no result depends on them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tuneloop.artifacts import read_json

PACKAGES = (
    *("tuneloop", "torch", "transformers", "tokenizers", "vllm", "numpy", "scipy", "pandas", "matplotlib"),
    *("great-expectations", "dvc", "prefect"),
)

STAGES = ("boards", "checks", "policy", "baseline", "train", "retest", "compare")
"""In the order in which they run."""


def versions() -> dict[str, str]:
    """Python and the installed ones of `PACKAGES`."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, str]:
    """Processor, cores, memory and GPUs of the machine that runs this, as far as it tells."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    found["GPU"] = _gpus()
    return found


def stage_seconds(data: Path) -> dict[str, float]:
    """Seconds of every stage that left a `timings.json` under `data`, as its last real run took."""
    rank = {name: i for i, name in enumerate(STAGES)}
    files = sorted(data.glob("*/timings.json"), key=lambda path: (rank.get(path.parent.name, 99), path.parent.name))
    return {path.parent.name: float(read_json(path).get("seconds", float("nan"))) for path in files}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _gpus() -> str:
    # Asking the driver's own tool keeps torch, and its seconds of import, out of the report.
    if not shutil.which("nvidia-smi"):
        return "none"
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return ", ".join(answer.stdout.split("\n")[:-1]) or "none"
