"""Reads configuration files and model files in YAML, and resolves `extends`."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from conf.errors import ConfigError

# Errors that PyYAML raises in addition to YAMLError: for a month 13, an integer `0x_`, a list as a key, and
# an alias that contains itself.
NOT_YAML = (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError)


def read_config_file(path: Path) -> dict[str, Any]:
    """Reads the mapping in a configuration file.

    If the file `extends` another file, the mappings of both files are merged key by key.

    Raises:
        ConfigError: see `read_yaml`; or a file extends itself, directly or through other files.
    """
    return _read(path, ())


def read_models(values: dict[str, Any], path: Path) -> None:
    """Replaces the name of a model file by the mapping in that file, in `model` and in sources of candidates.

    Args:
        values: the mapping of the configuration file, which is changed.
        path: the configuration file. The names of model files are relative to it.
    """
    for section in _with_models(values):
        if isinstance(section.get("model"), str):
            section["model"] = read_yaml(_beside(path, section["model"], "model"))


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping in one YAML file.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8 or YAML, has a key twice, or contains no mapping.
    """
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL character
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"cannot read {path}: {reason}", "give the path of a YAML file that exists"
        ) from error
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path} is not UTF-8: byte 0x{content[error.start]:02x} in line {line}", "save the file as UTF-8"
        ) from error
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} contains a {type(values).__name__}, not a mapping", "start the file with `name: …`"
        )
    return values


def parse_yaml(text: str, where: str) -> Any:
    """Returns the value of a YAML text. Errors name `where`, the file or argument that contains the text.

    Raises:
        ConfigError: the text is not YAML, or has a key twice.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except NOT_YAML as error:
        raise ConfigError(f"{where} is not YAML: {yaml_problem(error)}", "correct its syntax") from error


def yaml_problem(error: BaseException) -> str:
    """Returns a description of the problem that PyYAML found."""
    return (
        "an alias contains itself, or values are nested too deeply"
        if isinstance(error, RecursionError)
        else str(error)
    )


def _read(path: Path, children: tuple[Path, ...]) -> dict[str, Any]:
    absolute = path.resolve()
    if absolute in children:
        chain = " extends ".join(str(file) for file in (*children[children.index(absolute) :], absolute))
        raise ConfigError(f"files extend each other in a circle: {chain}", "remove one of these `extends`")
    values = read_yaml(path)
    parent = values.pop("extends", None)
    if parent is None:
        return values
    base_path = _beside(path, parent, "extends")
    base = _read(base_path, (*children, absolute))
    for section in _with_models(base):
        if isinstance(section.get("model"), str):  # a path relative to the file that contains it
            section["model"] = str((base_path.parent / section["model"]).resolve())
    return _merge(base, values)


def _beside(path: Path, named: Any, key: str) -> Path:
    """Returns the path of the file that `named` names, relative to the folder of `path`.

    Raises:
        ConfigError: `named`, the value of `key` in the file `path`, is not the name of a file.
    """
    if not isinstance(named, str) or not named or "\0" in named:
        raise ConfigError(f"{path}: {key}={named!r} does not name a file", f"write {key}: other.yaml")
    return path.parent / named


def _with_models(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the mappings whose key `model` may name a file."""
    candidates = values.get("candidates")
    sources = candidates.get("sources") if isinstance(candidates, dict) else None
    listed = sources if isinstance(sources, list) else []
    return [values, *(source for source in listed if isinstance(source, dict))]


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses a key that occurs twice. PyYAML silently takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Converts a node to a mapping; raises YAMLError for a key that occurs twice."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.YAMLError(f"the key {key!r} is not text{key_node.start_mark}")
            if key in seen:
                raise yaml.YAMLError(f"the key {key!r} occurs twice{key_node.start_mark}")
            seen.add(key)
        return super().construct_mapping(node, deep)
