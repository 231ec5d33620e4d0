"""GPUs by what nvidia-smi prints, and whether a torch build fits them."""

from __future__ import annotations

import os
import sys

import pytest

from tuneloop.doctor.gpu import (
    Gpu,
    Gpus,
    Torch,
    check_gpu,
    check_ranks,
    check_torch,
    has_code_for,
    look_at_torch,
    look_for_gpus,
    parse_gpus,
)

H200 = "NVIDIA H200, 143771, 580.126.09, 9.0\n"
GB10 = "NVIDIA GB10, [N/A], 580.126.09, 12.1\n"
"""A DGX Spark names no memory of its own: it is the system's."""
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
"""As printed on standard output, with status 9, where the kernel module is not loaded."""
CUDA13 = Torch("2.13.0", "13.0", True, ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_120"))


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Puts a program of this name on the PATH that prints `text` and ends with `status`."""

    def put(text: str, status: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!{sys.executable}\nimport sys\nprint({text!r}, end='')\nsys.exit({status})\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return put


def test_the_gpus_of_a_machine_are_read_from_its_answer(nvidia_smi):
    nvidia_smi(H200 * 2)
    gpus = look_for_gpus()
    assert gpus == Gpus((Gpu("NVIDIA H200", 143771, "580.126.09", (9, 0)),) * 2)
    finding = check_gpu(gpus)
    assert finding.level == "OK"
    assert finding.found.count("NVIDIA H200, 140 GiB") == 2  # 143771 MiB


def test_a_gpu_without_memory_of_its_own_shares_the_systems():
    (gpu,) = parse_gpus(GB10).found
    assert (gpu.memory_mib, gpu.capability) == (None, (12, 1))
    assert "shared with the CPU" in check_gpu(Gpus((gpu,))).found


def test_no_nvidia_smi_means_the_cpu_and_is_no_fault(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look_for_gpus() == Gpus()
    assert check_gpu(Gpus()).level == "OK"


@pytest.mark.parametrize(("text", "status"), [(NO_DRIVER, 9), ("No devices were found\n", 6), ("what?\n", 0)])
def test_a_driver_that_does_not_answer_fails_with_its_own_words(nvidia_smi, text, status):
    nvidia_smi(text, status)
    finding = check_gpu(look_for_gpus())
    assert finding.level == "FAIL"
    assert finding.found == text.strip()
    assert "docs/gpu.md" in finding.next_step


def test_torch_for_the_cpu_on_a_gpu_machine_is_a_warning():
    finding = check_torch(Torch("2.13.0+cpu", None), parse_gpus(H200))
    assert finding.level == "WARN"
    assert "will not use NVIDIA H200" in finding.found


@pytest.mark.parametrize(("driver", "level"), [("575.57.08", "FAIL"), ("580.65.06", "OK"), ("580.126.09", "OK")])
def test_a_driver_older_than_torchs_cuda_fails(driver, level):
    # CUDA 13 needs 580.65.06 or newer on Linux: CUDA Toolkit release notes.
    assert check_torch(CUDA13, parse_gpus(H200.replace("580.126.09", driver))).level == level


def test_a_cuda_build_that_finds_no_gpu_fails():
    finding = check_torch(Torch("2.13.0", "13.0", usable=False), parse_gpus(H200))
    assert finding.level == "FAIL"
    assert "CUDA_VISIBLE_DEVICES" in finding.next_step


def test_a_gpu_that_the_build_has_no_code_for_fails_and_is_named():
    finding = check_torch(Torch("2.13.0", "13.0", True, ("sm_100", "sm_120")), parse_gpus(H200))
    assert finding.level == "FAIL"
    assert "NVIDIA H200 (9.0)" in finding.found


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        (("sm_120",), (12, 1), True),  # same major version, higher minor: a DGX Spark runs sm_120 code
        (("sm_90",), (9, 0), True),
        (("sm_121",), (12, 0), False),
        (("sm_80",), (9, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_120a",), (12, 1), False),  # code for one architecture alone
        (("compute_80",), (12, 1), True),  # PTX is translated for what is newer
        (("compute_120",), (9, 0), False),
        ((), (9, 0), True),  # a CPU build or an unknown one: nothing is claimed
    ],
)
def test_binary_code_and_ptx_run_where_cuda_says_they_do(archs, capability, runs):
    assert has_code_for(archs, capability) is runs


@pytest.mark.parametrize(("ranks", "level"), [(2, "OK"), (3, "FAIL")])
def test_every_rank_wants_a_gpu_of_its_own(ranks, level):
    assert check_ranks(ranks, parse_gpus(H200 * 2)).level == level


def test_one_rank_or_no_gpu_wants_nothing():
    assert check_ranks(1, parse_gpus(H200)) is None
    assert check_ranks(2, Gpus()) is None


def test_a_torch_that_kills_its_process_is_a_finding(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = check_torch(look_at_torch(), Gpus())
    assert finding.level == "FAIL"
    assert "-11" in finding.found
