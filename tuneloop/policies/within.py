"""Computing with a module whose parameters may be spread over several processes.

Such a module (see `tuneloop.training.ranks`) carries a method `within`, which makes its parameters whole before a
function runs and sees to their gradients afterwards. Every other module computes as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def within(module: torch.nn.Module, function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, which reads `module`'s own parameters."""
    return module.within(function, *arguments) if hasattr(module, "within") else function(*arguments)
