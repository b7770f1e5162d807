"""The commands that make a run again, from its recorded settings."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from gelato.agents.agent import AbstractAgent
from gelato.data.transitions import Dataset
from gelato.model.config import preset as choose_model
from gelato.report.page.collect.source import Source
from gelato.training.method import describe_value, find_family
from gelato.training.presets import PresetName, choose_parts, list_methods, make_method

# Options of `gelato model fit`; other settings of a model have none.
_MODEL_OPTIONS = ("latent_size", "decoders", "batch_size", "updates", "variance_updates")


def write_commands(source: Source) -> list[str]:
    """Write the commands for a shell, with every setting that differs from the preset.

    They use a new folder, because a finished run is not trained again.
    """
    folder = f"{source.folder}-again"
    train = _write_training(source, folder) if source.is_training else _write_fit(source, folder)
    commands = [train, ["gelato", "report", folder]]
    if source.is_training:
        commands.insert(1, ["gelato", "select", folder])
    return [shlex.join(words) for words in commands]


def find_unnamed(source: Source) -> list[str]:
    """Return the methods that only a Python program can make."""
    families = [find_family(method["name"]) for method in source.description.get("methods", [])]
    return [name for name in dict.fromkeys(families) if name not in list_methods()]


def _write_training(source: Source, folder: str) -> list[str]:
    described = source.description
    methods = described["methods"]
    families = list(dict.fromkeys(find_family(method["name"]) for method in methods))
    words = ["gelato", "train", described["data"]["reference"], "--run", folder]
    words += ["--method", *families, *_write_seeds(described["seeds"])]
    if described["model"] is not None:
        words += ["--model", described["model"]]
    weights = [
        method["penalty_weight"]
        for method in methods
        if method["penalty"] != "none" or method["penalty_weight"]
    ]
    fractions = [method["real_fraction"] for method in methods if _mixes_real_data(method)]
    for option, values in (("--penalty-weight", weights), ("--real-fraction", fractions)):
        if values:
            words += [option, *[_write_value(value) for value in dict.fromkeys(values)]]
    if source.dataset is not None and not find_unnamed(source):
        words += _write_settings(described, source.dataset)
    return words


def _mixes_real_data(method: Mapping[str, Any]) -> bool:
    """Whether a recorded method mixes logged and imagined steps, so that a fraction applies."""
    agents = _list_derived(AbstractAgent.__subclasses__())
    reads_log = {agent.__name__: agent.reads_log for agent in agents}
    return method["fit"] is not None and reads_log.get(method["agent"]["type"], True)


def _list_derived(agents: Sequence[type[AbstractAgent]]) -> list[type[AbstractAgent]]:
    """Return classes of agents and all classes derived from them."""
    return [*agents, *(each for agent in agents for each in _list_derived(agent.__subclasses__()))]


def _write_settings(described: Mapping[str, Any], dataset: Dataset) -> list[str]:
    """Return the preset with the fewest changed settings, the penalty, and these settings."""
    changed = {name: _list_changes(described, dataset, name) for name in get_args(PresetName)}
    preset = min(changed, key=lambda name: len(changed[name]))
    words = [] if preset == "default" else ["--preset", preset]
    parts = choose_parts(dataset, preset)
    for method in described["methods"]:
        usual = make_method(find_family(method["name"]), parts).penalty
        if method["penalty"] != usual and isinstance(method["penalty"], str):
            words += ["--penalty", method["penalty"]]
            break
    if changed[preset]:
        words += ["--set", *changed[preset]]
    return words


def _list_changes(
    described: Mapping[str, Any], dataset: Dataset, preset: PresetName
) -> tuple[str, ...]:
    """List `NAME=VALUE` for all recorded settings that differ from those of a preset."""
    parts = choose_parts(dataset, preset)
    usual = {}
    for field in fields(parts):
        part = getattr(parts, field.name)
        value = describe_value(part)
        if isinstance(value, dict):
            unwritten = _list_unwritten(part, field.name)
            expected = unwritten | flatten(value, field.name)
            usual[value["type"]] = field.name, unwritten, expected
    recorded = [described["settings"]]
    for method in described["methods"]:
        recorded += [method["agent"], method["fit"]]
    changes: dict[str, None] = {}
    for value in recorded:
        if value is None or value["type"] not in usual:
            continue
        name, unwritten, expected = usual[value["type"]]
        for setting, text in (unwritten | flatten(value, name)).items():
            if expected.get(setting) != text:
                changes[f"{setting}={_write_value(_read(text))}"] = None
    return tuple(changes)


def _list_unwritten(settings: Any, name: str) -> dict[str, str]:
    """Return the settings that a run does not record at their default, with these defaults."""
    found: dict[str, str] = {}
    for each in fields(settings):
        value, inner = getattr(settings, each.name), f"{name}.{each.name}"
        if is_dataclass(value):
            found |= _list_unwritten(value, inner)
        elif each.metadata.get("added_later"):
            found |= flatten(describe_value(each.default), inner)
    return found


def _write_fit(source: Source, folder: str) -> list[str]:
    described, config = source.description, source.description["config"]
    words = ["gelato", "model", "fit", described["data"]["reference"]]
    words += ["--run", folder, *_write_seeds(described["seeds"])]
    options: Sequence[str] = _MODEL_OPTIONS
    if source.dataset is not None:
        changed = {}
        for name in ("default", "paper"):
            usual = choose_model(name, source.dataset)
            changed[name] = [key for key in config if config[key] != _plain(usual, key)]
        preset = min(changed, key=lambda name: len(changed[name]))
        words += [] if preset == "default" else ["--preset", preset]
        options = [name for name in _MODEL_OPTIONS if name in changed[preset]]
    for name in options:
        words += [f"--{name.replace('_', '-')}", str(config[name])]
    return words


def _plain(config: Any, key: str) -> Any:
    return describe_value(getattr(config, key, None))


def _write_seeds(seeds: Sequence[int]) -> list[str]:
    words = ["--seeds", str(len(seeds))]
    return [*words, "--first-seed", str(seeds[0])] if seeds[0] else words


def flatten(value: Any, name: str) -> dict[str, str]:
    """Return nested settings with dotted names, such as `fit.model.decoders`."""
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for key, each in value.items():
            found |= flatten(each, f"{name}.{key}")
        return found
    return {name: value if isinstance(value, str) else json.dumps(value)}


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _write_value(value: Any) -> str:
    """Write a value as `--set` and other options read it."""
    if isinstance(value, list):
        return ",".join(map(_write_value, value))
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "none" if value is None else str(value)
