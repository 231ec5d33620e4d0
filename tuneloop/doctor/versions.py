"""Python and the packages, held against the bounds that the project declares.

Reads versions from package metadata and imports nothing, so that it works where packages are missing.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from tuneloop.doctor.finding import Finding, fail, ok

PYTHON = (3, 11)
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_BOUND = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([^,\s]+)")


def check_python(running: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Whether the running Python is new enough."""
    found = f"{'.'.join(map(str, running))} ({sys.executable})"
    if running[:2] < PYTHON:
        return fail("python", found, f"make venv PYTHON=/path/to/python{PYTHON[0]}.{PYTHON[1]} (or newer)")
    return ok("python", found)


def check_packages(requirements: list[str] | None = None) -> list[Finding]:
    """One line if all is as declared, else one for every package that is missing or outside its bounds."""
    wanted = declared() if requirements is None else requirements
    if not wanted:
        return [fail("packages", "neither pyproject.toml nor the metadata of tuneloop was found", "make venv")]
    wrong = [finding for text in wanted if (finding := check_requirement(text))]
    return wrong or [ok("packages", f"{len(wanted)} as pyproject.toml wants them")]


def check_requirement(text: str) -> Finding | None:
    """The fault of one requirement (`torch>=2.9`), None where there is none."""
    name, bounds = _split(text)
    has = installed(name)
    if has is None:
        return fail(f"package {name}", f"is missing (wanted: {name}{bounds})", "make venv")
    if not satisfies(has, bounds):
        return fail(
            f"package {name}", f"is {has} (wanted: {name}{bounds})", f"pip install '{name}{bounds}', or make venv"
        )
    return None


def declared() -> list[str]:
    """The project's own requirements, without extras: from pyproject.toml where this is a checkout, else from
    the installed metadata; empty if there is neither."""
    if PYPROJECT.is_file():
        import tomllib  # not in the Pythons that check_python turns away

        return list(tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["dependencies"])
    try:
        return [text for text in requires("tuneloop") or [] if "extra ==" not in text]
    except PackageNotFoundError:
        return []


def demanded(package: str, of: str) -> str:
    """The bounds that the installed `package` puts on `of` outside its extras; "" if none."""
    try:
        listed = requires(package) or []
    except PackageNotFoundError:
        return ""
    for text in listed:
        name, bounds = _split(text)
        if name.lower().replace("_", "-") == of and "extra ==" not in text:
            return bounds
    return ""


def installed(package: str) -> str | None:
    """The installed version; None if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def satisfies(has: str, bounds: str) -> bool:
    """Whether version `has` lies within `bounds` (`>=3.7,<4`). Compares the release numbers only: build tags
    (`+cpu`) and pre-release marks are left aside. `~=` is not used in this project and is passed over."""
    number = _release(has)
    for sign, text in _BOUND.findall(bounds):
        bound = _release(text)
        width = max(len(number), len(bound))
        left, right = (part + (0,) * (width - len(part)) for part in (number, bound))
        met = {
            ">=": left >= right,
            "<=": left <= right,
            ">": left > right,
            "<": left < right,
            "==": left[: len(bound)] == bound if text.endswith(".*") else left == right,
            "!=": left != right,
        }
        if not met.get(sign, True):
            return False
    return True


def _release(text: str) -> tuple[int, ...]:
    matched = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in matched.group().split(".")) if matched else ()


def _split(requirement: str) -> tuple[str, str]:
    matched = _REQUIREMENT.match(requirement)
    if not matched:
        raise ValueError(f"not a requirement: {requirement!r}")
    return matched.group(1), matched.group(2).replace(" ", "")
