"""RL, SFT and DPO side by side: one Markdown table from the results of several whole runs.

    python bench/algorithms_table.py RESULTS [RESULTS …]

Every folder below RESULTS that holds `compare/metrics.json` (a workspace's data/, or a copy of it) and, in it or above
it, the `params.yaml` of the run is one run. Runs of the same task and algorithm that differ in nothing but their seed
are one line: the held-out reward after training as mean ± spread (standard deviation over the seeds), and for every
seed the difference to its own baseline with its interval (paired by record, bootstrap clustered by class). The columns
behind it are means over the seeds: the task's last measure, steps, sampled replies of those steps, mean reply tokens.
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

from tuneloop.errors import UserError
from tuneloop.params import Params, load_params

ORDER = ("gspo", "gspo_token", "grpo", "dr_grpo", "dapo", "sft", "dpo")
HEAD = (
    *("task", "algorithm", "learning rate", "seeds", "reward before", "reward after"),
    *("difference, each seed with its interval", "measure after", "sampled replies", "tokens a reply"),
)


@dataclass(frozen=True)
class Run:
    """One run: its parameters and the numbers of data/compare/metrics.json."""

    folder: Path
    params: Params
    metrics: Mapping[str, Any]

    @property
    def setting(self) -> str:
        """All parameters but the run's seed, as text: equal for runs that are seeds of one another."""
        return json.dumps(self.params.model_dump(exclude={"seed"}), sort_keys=True)

    @property
    def sampled(self) -> int:
        """Replies that training rolled out, by the parameters."""
        train = self.params.train
        steps = train.steps if train.examples is None else 1 + train.steps // train.keep_replies_every
        return steps * train.boards_per_step * train.oversample * train.group_size


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
        yield Run(folder, load_params(params), json.loads(path.read_text(encoding="utf-8")))


def table(found: Sequence[Run]) -> list[str]:
    """The lines of the Markdown table, by task and algorithm."""
    settings: dict[str, list[Run]] = defaultdict(list)
    for run in found:
        settings[run.setting].append(run)
    lines = [sorted(seeds, key=lambda run: run.params.seed) for seeds in settings.values()]
    lines.sort(key=lambda seeds: _place(seeds[0].params))
    return [_row(HEAD), _row("---" for _ in HEAD), *(_row(_cells(seeds)) for seeds in lines)]


def _place(params: Params) -> tuple[str, int, float]:
    return params.task.name, ORDER.index(params.train.algorithm), params.train.lr


def _cells(seeds: Sequence[Run]) -> list[str]:
    params = seeds[0].params
    rewards = [run.metrics["sampled"]["reward"] for run in seeds]
    measure = list(seeds[0].metrics["sampled"])[-1]
    source = "" if params.train.examples is None else f" on {params.train.examples}"
    differences = (
        f"{r['difference']['value']:+.3f} [{r['difference']['low']:+.3f}, {r['difference']['high']:+.3f}]"
        for r in rewards
    )
    return [
        params.task.name,
        params.train.algorithm + source,
        f"{params.train.lr:g}",
        ", ".join(str(run.params.seed) for run in seeds),
        _spread([r["before"]["value"] for r in rewards]),
        f"**{_spread([r['after']['value'] for r in rewards])}**",
        "; ".join(differences),
        f"{measure} {100 * fmean(run.metrics['sampled'][measure]['after']['value'] for run in seeds):.1f} %",
        f"{seeds[0].sampled:,}",
        f"{fmean(run.metrics['lengths']['sampled']['after']['all'] for run in seeds):.1f}",
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):+.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(re.sub(r"(?<![\w-])-(?=\d)", "−", cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
