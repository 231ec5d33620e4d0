"""A task's own values for keys that params.yaml leaves null: `values.yaml` in the task's folder.

    nano:                                  a preset of tuneloop/policies/presets.yaml
      params:                              under every train.algorithm
        policy.warm_start.updates: 2000
      algorithms:                          and under one alone
        dpo: {train.lr: 4.0e-4}

For what a task needs to be learned with a preset and other tasks do not. A task without the file, and a preset
that it does not name, take the preset's values.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tuneloop.errors import UserError
from tuneloop.policies.presets import Algorithm, Preset, preset_keys, presets

Values = dict[str, int | float | bool | str]


class Own(BaseModel):
    """What one preset is given by a task, by dotted key."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    params: Values = {}
    algorithms: dict[Algorithm, Values] = {}


def values(preset: Preset, task: str | None, algorithm: str | None) -> Values:
    """The value of every key that params.yaml may leave null, for this preset, `task.name` and `train.algorithm`.

    What holds under the algorithm alone goes before what always holds; within each, the task's before the
    preset's. Raises UserError for a values.yaml that says something else than this module's example.
    """
    own = own_values(task).get(preset.name, Own())
    return {
        **preset.params,
        **own.params,
        **preset.algorithms.get(algorithm, {}),
        **own.algorithms.get(algorithm, {}),
    }


def own_values(task: str | None, root: Path = Path(__file__).parent) -> dict[str, Own]:
    """By preset, what the task's values.yaml under `root` says; nothing where there is none."""
    path = root / (task or "") / "values.yaml"
    if not task or Path(task).name != task or not path.is_file():
        return {}
    where = f"tuneloop/tasks/{task}/values.yaml"
    try:
        found = TypeAdapter(dict[str, Own]).validate_python(YAML(typ="safe").load(path.read_text(encoding="utf-8")))
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: is not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{where}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}; "
            "see tuneloop/tasks/values.py for what the file looks like"
        ) from None
    for name, own in found.items():
        if name not in presets():
            raise UserError(f"{where}: there is no preset {name!r}; known presets: {', '.join(presets())}")
        unknown = [k for k in (*own.params, *(k for v in own.algorithms.values() for k in v)) if k not in preset_keys()]
        if unknown:
            raise UserError(
                f"{where}: {name}: {unknown[0]} is no key that may be null in params.yaml; "
                f"those are {', '.join(preset_keys())}"
            )
    return found
