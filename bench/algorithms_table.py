"""RL, SFT and DPO side by side: one Markdown table from the results of several whole runs.

    python bench/algorithms_table.py RESULTS [RESULTS …]

Every folder below RESULTS that holds `compare/metrics.json` (a workspace's data/, or a copy of it) and, in it or above
it, the `params.yaml` of the run is one run. Runs of the same task and algorithm that differ in nothing but their seed
are one line: the held-out reward after training as mean ± spread (standard deviation over the seeds), and for every
seed the difference to its own baseline with its interval (paired by record, bootstrap clustered by class). The columns
behind it are the task's measures (means over the seeds), the replies that training sampled, and the mean reply tokens.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ruamel.yaml import YAML

from tuneloop.errors import UserError
from tuneloop.params import with_preset_values

ORDER = ("gspo", "gspo_token", "grpo", "dr_grpo", "dapo", "sft", "dpo")
HEAD = (
    *("task", "algorithm", "learning rate", "seeds", "reward before", "reward after"),
    *("difference, each seed with its interval", "measures after", "sampled replies", "tokens a reply"),
)


@dataclass(frozen=True)
class Run:
    """One run: params.yaml with the preset's values, as nested mappings (of an earlier version too: a key that it lacks
    counts as null), and the numbers of data/compare/metrics.json."""

    params: Mapping[str, Any]
    metrics: Mapping[str, Any]

    @property
    def train(self) -> Mapping[str, Any]:
        return self.params["train"]

    @property
    def setting(self) -> str:
        """All parameters but the run's seed, as text: equal for runs that are seeds of one another."""
        unread = () if self.train["algorithm"] == "dpo" else ("dpo_beta",)
        train = {name: value for name, value in self.train.items() if value is not None and name not in unread}
        return json.dumps({**self.params, "seed": None, "train": train}, sort_keys=True)

    @property
    def sampled(self) -> int:
        """Replies that training rolled out, by the parameters."""
        train = self.train
        steps = train["steps"] if train.get("examples") is None else 1 + train["steps"] // train["keep_replies_every"]
        return steps * train["boards_per_step"] * train["oversample"] * train["group_size"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", nargs="+", type=Path)
    options = parser.parse_args()
    try:
        print("\n".join(table(list(runs(options.results)))))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def runs(places: Sequence[Path]) -> Iterator[Run]:
    """All runs under `places`, each once. Raises UserError where there is none, and for one without params.yaml."""
    found = sorted({path for place in places for path in place.rglob("compare/metrics.json")})
    if not found:
        raise UserError(f"no compare/metrics.json under {', '.join(map(str, places))}")
    for path in found:
        folder = path.parents[1]
        around = [folder / "params.yaml", folder.parent / "params.yaml"]
        params = next((p for p in around if p.is_file()), None)
        if params is None:
            raise UserError(f"{path}: no params.yaml beside it or above, so nothing says what was run")
        tree = with_preset_values(YAML(typ="safe").load(params.read_text(encoding="utf-8")))
        yield Run(tree, json.loads(path.read_text(encoding="utf-8")))


def table(found: Sequence[Run]) -> list[str]:
    """The lines of the Markdown table, by task and algorithm."""
    settings: dict[str, list[Run]] = defaultdict(list)
    for run in found:
        settings[run.setting].append(run)
    lines = [sorted(seeds, key=lambda run: run.params["seed"]) for seeds in settings.values()]
    lines.sort(key=lambda seeds: _place(seeds[0]))
    return [_row(HEAD), _row("---" for _ in HEAD), *(_row(_cells(seeds)) for seeds in lines)]


def _place(run: Run) -> tuple[str, int, float]:
    return _task(run), ORDER.index(run.train["algorithm"]), run.train["lr"]


def _task(run: Run) -> str:
    task = run.params["task"]
    return task["name"] + (f", {task['mode']} mode" if task.get("mode", "move") != "move" else "")


def _algorithm(run: Run) -> str:
    said = [run.train["algorithm"]]
    if run.train["algorithm"] == "dpo":
        said.append(f"β {run.train['dpo_beta']:g}")
    if run.train.get("sft_least_reward") is not None:
        said.append(f"replies of {run.train['sft_least_reward']:g} and more")
    if run.train.get("examples") is not None:
        said.append(f"on {run.train['examples']}")
    return ", ".join(said)


def _cells(seeds: Sequence[Run]) -> list[str]:
    rewards = [run.metrics["sampled"]["reward"] for run in seeds]
    measures = [name for name in seeds[0].metrics["sampled"] if name != "reward"]
    differences = (
        f"{r['difference']['value']:+.3f} [{r['difference']['low']:+.3f}, {r['difference']['high']:+.3f}]"
        for r in rewards
    )
    return [
        _task(seeds[0]),
        _algorithm(seeds[0]),
        f"{seeds[0].train['lr']:g}",
        ", ".join(str(run.params["seed"]) for run in seeds),
        _spread([r["before"]["value"] for r in rewards]),
        f"**{_spread([r['after']['value'] for r in rewards])}**",
        "; ".join(differences),
        ", ".join(
            f"{name} {100 * fmean(run.metrics['sampled'][name]['after']['value'] for run in seeds):.1f} %"
            for name in measures
        ),
        f"{seeds[0].sampled:,}",
        f"{fmean(run.metrics['lengths']['sampled']['after']['all'] for run in seeds):.1f}",
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):+.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(re.sub(r"(?<![\w-])-(?=\d)", "−", cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
