"""docs/models.md says of every preset what presets.yaml says, and of every engine what it computes."""

from __future__ import annotations

import re
from pathlib import Path

from tuneloop.policies.presets import presets

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    """The table under a heading: the cells of every row by its first cell."""
    part = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| `")
    ]
    return {first.strip("`"): rest for first, *rest in cells}


def test_the_table_has_every_preset_with_its_engine_and_needs():
    table = rows("Presets")
    assert list(table) == list(presets())
    for name, (_, engine, _, download, disk, memory) in table.items():
        preset = presets()[name]
        assert engine == preset.params["rollout.engine"]
        assert [float(download), float(disk), float(memory)] == [
            preset.needs.download,
            preset.needs.disk,
            preset.needs.memory,
        ]


def test_the_table_says_what_is_trained_and_in_which_numbers():
    for name, (_, _, trains, *_) in rows("Presets").items():
        preset = presets()[name]
        if preset.training is not None:
            assert trains.startswith("nothing")
            continue
        assert preset.params["train.dtype"] in trains
        assert (f"LoRA, rank {preset.params['train.lora.rank']}" in trains) is (preset.params["train.lora.rank"] > 0)


def test_the_torch_engines_architectures_are_those_of_its_forward_pass():
    from tuneloop.policies.decoder import SUPPORTED

    computes = rows("Which engine computes which model")["torch"][0]
    assert sorted(re.findall(r"`(\w+)`", computes.split("(")[0])) == sorted(SUPPORTED)
