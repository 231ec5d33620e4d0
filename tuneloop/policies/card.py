"""The card in a policy's folder (`tuneloop.json`): what a model folder itself does not say."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tuneloop.artifacts import read_json, write_json
from tuneloop.errors import UserError
from tuneloop.toolcalls import Reasoning, load_dialect

NAME = "tuneloop.json"


@dataclass(frozen=True)
class PolicyCard:
    """`dialect`: how the policy writes tool calls. `reasoning`: its markers, None if it has none.
    `thinking`: the position of the chat template's reasoning switch."""

    source: str
    dialect: str
    reasoning: Reasoning | None
    thinking: bool


def save_policy_card(card: PolicyCard, folder: Path) -> None:
    """Write the card beside the policy's files in `folder`."""
    write_json(folder / NAME, asdict(card))


def load_policy_card(folder: Path | str) -> PolicyCard:
    """The card in `folder`. Raises UserError naming the file if it is missing or not a card."""
    path = Path(folder) / NAME
    fields = read_json(path)
    try:
        reasoning = fields["reasoning"]
        card = PolicyCard(
            source=str(fields["source"]),
            dialect=str(fields["dialect"]),
            reasoning=None if reasoning is None else Reasoning(**reasoning),
            thinking=bool(fields["thinking"]),
        )
    except (TypeError, KeyError) as error:
        raise UserError(f"{path}: is not a policy card ({error})") from None
    load_dialect(card.dialect)
    return card
