"""The machine as torch sees it, set up the same way in every stage that computes."""

from __future__ import annotations

import ctypes
import sys

import torch

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def prepare(threads: int) -> torch.device:
    """Fix the number of threads, ask for repeatable algorithms, and name the device to compute on.

    Results repeat bit for bit on the same machine with the same number of threads: how a sum is
    split among threads decides how it rounds.
    """
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    # Every tensor is written before it is read; filling fresh memory with NaN first cost 4 % of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False
    _keep_freed_memory()
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _keep_freed_memory() -> None:
    """Tell glibc to reuse large blocks instead of returning them to the system after every
    operation: fetching fresh zeroed pages took a fifth of the training time of a small model."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library: slower, not different
        return
    # One arena: a second one for another thread would keep memory of its own.
    for option, size in (
        (_M_MMAP_THRESHOLD, 1 << 30),
        (_M_TRIM_THRESHOLD, 1 << 30),
        (_M_TOP_PAD, 1 << 26),
        (_M_ARENA_MAX, 1),
    ):
        mallopt(option, size)
