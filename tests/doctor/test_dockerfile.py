"""The Dockerfile's pins agree with the project's. It cannot be built where these tests run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")

CUDA = {"2.13.0": "13.0.3"}
"""By torch version, the cuda-toolkit that its Linux wheels on PyPI require, x86-64 and aarch64 alike (Requires-Dist of
torch-2.13.0-cp312-cp312-manylinux_2_28_aarch64.whl). A new torch is looked up and entered here."""


def pinned(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{package} is not in constraints.txt"
    return found.group(1)


def argument(name: str) -> str:
    (value,) = re.findall(rf"^ARG {name}=(\S+)$", TEXT, re.MULTILINE)
    return value


def instructions() -> list[str]:
    """Every instruction on one line, comments left out."""
    lines = [line for line in TEXT.splitlines() if not line.lstrip().startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def test_torch_is_the_version_of_constraints():
    assert argument("TORCH_VERSION") == pinned("torch")


def test_python_is_the_base_images_and_within_the_projects_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert SpecifierSet(project["requires-python"]).contains(argument("PYTHON_VERSION"))
    assert argument("PYTHON_VERSION") == "3.12"  # the only python3 of Ubuntu 24.04
    assert 'ENV PYTHON="python${PYTHON_VERSION}"' in TEXT  # what the Makefile makes the environment with


def test_the_base_image_is_pinned_to_the_cuda_that_torch_brings():
    (base,) = re.findall(r"^FROM (\S+)$", TEXT, re.MULTILINE)
    assert base == f"nvidia/cuda:{CUDA[pinned('torch')]}-base-ubuntu24.04"


def test_nothing_runs_as_root_after_the_packages_of_the_system():
    kinds = [line.split()[0] for line in instructions()]
    assert kinds.count("USER") == 1
    assert "root" not in next(line for line in instructions() if line.startswith("USER"))
    after = kinds[kinds.index("USER") :]
    assert {"COPY", "RUN", "CMD"} <= set(after)
    assert kinds[: kinds.index("USER")].count("RUN") == 1


def test_the_image_is_set_up_by_make_venv_and_runs_make_run():
    runs = [line for line in instructions() if line.startswith("RUN")]
    assert "make venv" in runs[-1]
    assert instructions()[-1] == 'CMD ["make", "run"]'


def test_the_context_leaves_out_what_the_image_makes_and_keeps_the_git_repository():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".venv", ".state", ".dvc/cache", ".dvc/tmp"} <= set(ignored)
    assert ".git" not in ignored
