"""`tuneloop doctor`: the findings as lines, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tuneloop.doctor.examine import examine
from tuneloop.doctor.finding import Finding

SCHEMA = 1
"""Raised whenever a key of the JSON changes its meaning or goes away."""


def run_doctor(*, as_json: bool) -> int:
    """Print what was found. Exit status 1 if anything FAILs, else 0."""
    findings = examine(Path.cwd())
    print(in_json(findings) if as_json else in_lines(findings), flush=True)
    return int(any(finding.level == "FAIL" for finding in findings))


def in_lines(findings: Sequence[Finding]) -> str:
    """A line a finding, one more for its next step, and a last one that counts."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<4}  {finding.name:<{width}}  {finding.found}")
        if finding.next_step:
            lines.append(f"{'':<4}  {'':<{width}}  -> {finding.next_step}")
    return "\n".join([*lines, _sum(findings)])


def in_json(findings: Sequence[Finding]) -> str:
    """`schema`, `failed` (whether anything FAILs) and `findings`, each with name, level, found and next_step."""
    failed = any(finding.level == "FAIL" for finding in findings)
    tree = {"schema": SCHEMA, "failed": failed, "findings": [asdict(finding) for finding in findings]}
    return json.dumps(tree, indent=2)


def _sum(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in ("FAIL", "WARN")}
    if not any(counts.values()):
        return "all is well"
    return ", ".join(f"{number} {level}" for level, number in counts.items() if number)
