"""Python and packages against the bounds of pyproject.toml."""

from __future__ import annotations

import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from tuneloop.doctor import versions


def test_an_old_python_fails_and_names_the_way_to_another():
    finding = versions.check_python((3, 10, 12))
    assert finding.level == "FAIL"
    assert "3.10.12" in finding.found
    assert "PYTHON=" in finding.next_step
    assert versions.check_python((3, 12, 3)).level == "OK"


def test_the_python_bound_is_that_of_pyproject(root):
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert declared == f">={versions.PYTHON[0]}.{versions.PYTHON[1]}"


def test_this_environment_has_what_the_project_declares():
    (finding,) = versions.check_packages()
    assert finding.level == "OK"
    assert str(len(versions.declared())) in finding.found


def test_a_missing_package_is_one_line_that_fails():
    (finding,) = versions.check_packages(["pytest>=8", "no-such-package>=2,<3"])
    assert (finding.name, finding.level) == ("package no-such-package", "FAIL")
    assert "no-such-package>=2,<3" in finding.found


def test_a_version_outside_its_bounds_fails_with_both_named():
    (finding,) = versions.check_packages([f"pytest[dev] >=1, <{pytest.version_tuple[0]}"])
    assert finding.level == "FAIL"
    assert pytest.__version__ in finding.found
    assert f"pip install 'pytest>=1,<{pytest.version_tuple[0]}'" in finding.next_step


@pytest.mark.parametrize("bounds", [">=3.7.7,<4", "==2.13.0", "==2.13.*", "!=3.8", ">3.8,<=3.9.1", "<4", ""])
@pytest.mark.parametrize(
    "has", ["3.7.6", "3.7.7", "3.8", "3.8.0", "3.9.1", "3.10", "4.0", "4", "2.13.0", "2.13.1", "12"]
)
def test_bounds_mean_what_they_mean_to_pip(has, bounds):
    assert versions.satisfies(has, bounds) == SpecifierSet(bounds).contains(has)


def test_a_build_tag_does_not_make_a_version_another():
    assert versions.satisfies("2.13.0+cu130", "==2.13.0")


def test_what_a_package_demands_of_another_is_read_from_its_metadata():
    # transformers declares safetensors without an extra; torchvision only in extras.
    assert versions.demanded("transformers", "safetensors").startswith(">=")
    assert versions.demanded("transformers", "torchvision") == ""
    assert versions.demanded("no-such-package", "torch") == ""
