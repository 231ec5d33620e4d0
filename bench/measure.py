"""Peak memory and arithmetic rate of this process, on the processor or on the GPU."""

from __future__ import annotations

import resource
import sys
import time

import torch


def peak_mib(device: str = "cpu") -> float:
    """The largest resident memory this process has had, or on "cuda" the largest its tensors had together, MiB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def matmul_gflops(device: str = "cpu", seconds: float = 1.0) -> float:
    """Best rate (GFLOP/s) of a product of two square matrices, tried for `seconds`: float32 on the processor,
    bfloat16 on "cuda"."""
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (1536, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    best = float("inf")
    deadline = time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < deadline:
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        settle()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best / 1e9


def settle() -> None:
    """Wait until a GPU, where one is used, has done what it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
