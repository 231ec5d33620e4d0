"""Files that the pipeline writes: the same content is always the same bytes, and a file is
either the old one or the whole new one, never half of it."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuneloop.errors import UserError


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path`; renamed onto it if the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    """UTF-8, line ends as they are in `text`; whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def compact_json(value: Any) -> str:
    """One line, no spaces, keys in the order given; NaN is refused (ValueError)."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def write_json(path: Path | str, value: Any) -> None:
    """Indented JSON with sorted keys; floats with the shortest text that reads back equal."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Compact JSON, one object a line, each ended by `\\n`."""
    write_text(path, "".join(compact_json(row) + "\n" for row in rows))


def write_csv(path: Path | str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the keys of the first as header; floats as in `write_json`."""
    if not rows:
        raise ValueError(f"no rows to write to {path}")
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, out.getvalue())


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file. Raises UserError naming file and line for a missing file,
    a line that is not a JSON object, or a file without lines."""
    try:
        # Not splitlines(): a reply may hold U+2028 and its kind, which JSON leaves as they are.
        lines = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); make it with `dvc repro`") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None
    if lines == [""]:
        raise UserError(f"{path}: has no records")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: is not a JSON object: {line[:80]!r}")
        rows.append(row)
    return rows


def read_json(path: Path | str) -> Any:
    """The value in a JSON file. Raises UserError naming the file if it is missing or broken."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); make it with `dvc repro`") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON ({error})") from None
