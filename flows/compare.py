"""compare: experiments and revisions in one table, as artifact, CSV and page.

A revision is an experiment's name, anything git understands, or "workspace".
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from prefect import flow
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.states import Completed, Failed, State

from flows import contrast, plan
from flows.members import shared_cache
from flows.shown import REPORTS, artifact_key, report_url
from flows.workspace import check_name
from tuneloop.artifacts import write_csv, write_text
from tuneloop.errors import UserError

NOTE = (
    "Rewards and shares are of the sampled replies after training, with their intervals; “reward against” is a paired "
    "difference, held-out record by held-out record; * where its interval excludes 0."
)


@flow(name="compare", retries=0, persist_result=False)
def compare(revisions: list[str], against: str | None = None, name: str = "comparison") -> State:
    """Compare `revisions` with the one named by `against` (nothing: the first). `name` is the table's."""
    home = Path.cwd()
    try:
        check_name(name)
        wanted = list(dict.fromkeys([*revisions, *([against] if against else [])]))
        if len(wanted) < 2:
            raise UserError("revisions: name at least two experiments or revisions to compare")
        cache = Path(shared_cache(home))
        found = [contrast.find(home, revision, cache) for revision in wanted]
        chosen = next(one for one in found if one.name == (against or wanted[0]))
        numbers, texts = contrast.rows_of(found, chosen)
        folder = home / REPORTS / "comparisons" / name
        write_csv(folder / "table.csv", numbers)
        write_text(folder / "index.html", page(name, texts, chosen.name))
    except UserError as error:
        return Failed(message=str(error))
    where = report_url(home, f"comparisons/{name}")
    key = artifact_key(f"compare-{name}")
    create_table_artifact(texts, key=key, description=f"Comparison {name}. {NOTE}")
    create_link_artifact(f"{where}/index.html", link_text=f"comparison {name}", key=f"{key}-page")
    links = f"[page]({where}/index.html) · [CSV]({where}/table.csv)"
    text = f"# Comparison {name}\n\n{plan.markdown(texts)}\n{NOTE}\n\n{links}\n"
    create_markdown_artifact(text, key=f"{key}-text", description=f"Comparison {name}")
    return Completed(message=f"{len(found)} compared, against {chosen.name}")


def page(name: str, rows: list[dict[str, str]], chosen: str) -> str:
    """One HTML file that needs nothing else."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("compare.html.jinja").render(name=name, rows=rows, chosen=chosen, note=NOTE)
