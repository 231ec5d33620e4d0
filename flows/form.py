"""The parameters of a run as a form: every key of params.yaml, each left as it is unless it is filled in."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

from tuneloop.errors import UserError
from tuneloop.params import Params, known_keys, load_params, parse_params


class _Form(BaseModel):
    # Not "forbid": an API that checks the schema itself would refuse an unknown key without naming the nearest.
    model_config = ConfigDict(extra="allow")

    @model_serializer(mode="wrap")
    def _what_is_filled_in(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value not in (None, {})}

    def changes(self) -> dict[str, Any]:
        """What was filled in, by dotted key, in the order of params.yaml."""
        return flat(self.model_dump())


class _TopForm(_Form):
    @model_validator(mode="before")
    @classmethod
    def _dotted_or_nested(cls, given: Any) -> Any:
        """Accept `{"train.steps": 20}` and `{"train": {"steps": 20}}`; name the nearest key for an unknown one."""
        if not isinstance(given, Mapping):
            return given
        values = flat(given)
        if complaints := [said for key, value in values.items() if (said := complaint(key, value))]:
            raise ValueError("; ".join(complaints))
        return nested(values)


def _form(model: type[BaseModel], base: type[BaseModel], name: str) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for key, field in model.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            section = _form(kind, _Form, kind.__name__.removesuffix("Params"))
            fields[key] = (section, Field(title=key, default_factory=section))
        else:
            # Values are checked by `complaint`, whose words name the dotted key; the schema draws the form.
            schema = TypeAdapter(_value(field)).json_schema()
            fields[key] = (
                Annotated[Any, WithJsonSchema(schema)],
                Field(title=key, default=None, json_schema_extra=_no_default),
            )
    return create_model(name, __base__=base, **fields)


def _value(field: FieldInfo) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _no_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


Overrides: Any = _form(Params, _TopForm, "Overrides")
"""What differs from params.yaml; an empty field leaves its key as it is."""


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys; None and empty sections are left out."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}.")
        elif value is not None:
            found[f"{before}{key}"] = value
    return found


def nested(values: Mapping[str, Any], tree: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Dotted keys as nested mappings, laid over `tree`, which is not changed."""
    out = json.loads(json.dumps(tree or {}))
    for key, value in values.items():
        *sections, name = key.split(".")
        section = out
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return out


def check_changes(workspace: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content of params.yaml with these changes.

    Raises UserError for a params.yaml that is wrong as it is, for an unknown key, naming the nearest,
    and for a value that does not fit its key or the other values.
    """
    load_params(workspace / "params.yaml")
    if complaints := [said for key, value in changes.items() if (said := complaint(key, value))]:
        raise UserError("; ".join(complaints))
    tree = YAML(typ="safe").load((workspace / "params.yaml").read_text(encoding="utf-8"))
    changed = nested(changes, tree)
    parse_params(changed, "overrides")
    return changed


def dvc_settings(changes: Mapping[str, Any]) -> list[str]:
    """The changes as words for `dvc exp run`: -S key=value. Raises UserError for text that DVC would read otherwise."""
    return [word for key, value in changes.items() for word in ("-S", f"{key}={_hydra(key, value)}")]


def complaint(key: str, value: Any) -> str | None:
    """What is wrong with this value under this dotted key, taken by itself; None if nothing is."""
    known = known_keys()
    if key in known:
        try:
            _reader(key).validate_python(value, strict=True)
        except ValidationError as error:
            return f"{key}: {error.errors()[0]['msg']} (got {value!r})"
        return None
    if inside := [name for name in known if name.startswith(f"{key}.")]:
        return f"{key}: is a section, not a value; it has {', '.join(inside)}"
    return f"{key}: there is no such key; the nearest is {_nearest(key, known)}"


@cache
def _reader(key: str) -> TypeAdapter[Any]:
    model: Any = Params
    *sections, name = key.split(".")
    for section in sections:
        model = model.model_fields[section].annotation
    return TypeAdapter(_value(model.model_fields[name]))


def _nearest(key: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(key, list(known), n=1, cutoff=0)[0]


def _hydra(key: str, value: Any) -> str:
    """A value in Hydra's override grammar, which DVC reads; strings are quoted, so that nothing in them counts."""
    if not isinstance(value, str):
        return json.dumps(value)
    if "\\" in value or "${" in value:
        raise UserError(f"overrides: {key}: {value!r} holds a backslash or '${{', which `dvc exp run -S` cannot take")
    return "'" + value.replace("'", "\\'") + "'"
