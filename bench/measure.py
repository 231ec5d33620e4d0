"""Peak memory and arithmetic rate of this process."""

from __future__ import annotations

import resource
import sys
import time

import torch


def peak_mib() -> float:
    """The largest resident memory this process has had, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def matmul_gflops(size: int = 1536, seconds: float = 1.0) -> float:
    """Best rate (GFLOP/s) of a float32 product of two [size, size] matrices, tried for `seconds`."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    best = float("inf")
    deadline = time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < deadline:
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best / 1e9
