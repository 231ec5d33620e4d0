"""Memory, disk and processor."""

from __future__ import annotations

import os
import types

import pytest

from tuneloop.doctor import machine

MEMINFO = """MemTotal:       24693748 kB
MemFree:         1154356 kB
MemAvailable:   {available} kB
Buffers:          281120 kB
"""
"""The first lines of /proc/meminfo on Linux; 24693748 kB are 25.3 GB."""


@pytest.mark.parametrize(
    ("available", "needed", "level"),
    [(20_000_000, 8, "OK"), (4_000_000, 8, "WARN"), (20_000_000, 80, "FAIL")],
)
def test_memory_warns_where_others_hold_it_and_fails_where_there_is_too_little(available, needed, level):
    finding = machine.check_memory(needed, MEMINFO.format(available=available))
    assert finding.level == level
    assert "of 25.3" in finding.found
    assert f"about {needed}" in finding.found


def test_a_containers_limit_counts_before_the_machines_memory(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1500000000\n")
    (tmp_path / "memory.current").write_text("500000000\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    finding = machine.check_memory(2)
    assert finding.level == "FAIL"
    assert finding.found.startswith("1.0 GB available of 1.5;")


def test_no_limit_leaves_the_machines_memory(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.check_memory(0.001).level == "OK"


@pytest.mark.parametrize(("free", "level"), [(0.2, "FAIL"), (1.5, "WARN"), (50, "OK")])
def test_a_full_disk_fails_and_a_nearly_full_one_warns(tmp_path, monkeypatch, free, level):
    block = 4096
    blocks = int(free * 10**9 / block)
    size = types.SimpleNamespace(f_frsize=block, f_blocks=10**8, f_bfree=blocks, f_bavail=blocks)
    monkeypatch.setattr(os, "statvfs", lambda path: size)
    finding = machine.check_disk(tmp_path, 1.0)
    assert finding.level == level
    assert f"{free:.1f} GB free" in finding.found
    assert ("dvc gc" in finding.next_step) is (level != "OK")


def test_more_threads_than_cores_is_a_warning_with_the_number_to_set():
    cores = machine.usable_cores()
    assert machine.check_cpu(cores).level == "OK"
    finding = machine.check_cpu(cores + 1)
    assert finding.level == "WARN"
    assert f"machine.threads to {cores}" in finding.next_step


@pytest.mark.parametrize(("written", "cores"), [("50000 100000\n", 1), ("100000 100000\n", 1), ("max 100000\n", None)])
def test_a_containers_share_of_time_counts_as_cores(tmp_path, monkeypatch, written, cores):
    # cgroup v2, cpu.max: microseconds in every period, or max.
    (tmp_path / "cpu.max").write_text(written)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.usable_cores() == (cores or len(os.sched_getaffinity(0)))


def test_waiting_threads_that_spin_are_a_warning(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    finding = machine.check_cpu(1)
    assert finding.level == "WARN"
    assert "unset OMP_WAIT_POLICY" in finding.next_step
