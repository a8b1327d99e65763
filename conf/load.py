"""Reads a configuration file, the files that it refers to, and `--set` overrides.

Error messages name the key whose value is wrong.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Hashable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import ValidationError

from conf.errors import ConfigError
from conf.messages import shortened
from conf.names import iso_date
from conf.plugins import Plugin
from conf.types import Config, Strict

Section = TypeVar("Section", bound=Strict)
_MOST_PROBLEMS = 20  # largest number of wrong keys that an error lists


def load_config(path: str, overrides: list[str] | None = None) -> Config:
    """Reads the configuration in a YAML file.

    If the file has the key `extends`, the file that this key refers to is read first, and the mappings of
    both files are merged key by key. If the value of a key `model` is the path of a file, the mapping in that
    file replaces the path. The key `model` may be at the top level, or in a source of `candidates`. Paths are
    relative to the folder of the file that contains them. Then `set_override` applies each override
    `a.b=value`. An override of `model` is applied before the model file is read, and an override of `model.a`
    after that.

    Raises:
        ConfigError: a file is missing or is not YAML, a key is unknown, or a value breaks its rule.
    """
    values = read_config_file(Path(path))
    for override in overrides or []:
        if override.startswith("model."):
            read_models(values, Path(path))
        set_override(values, override, Config)
    read_models(values, Path(path))
    return read_section(Config, values, f"{path}: ", "correct these keys in this file or in --set")


def parse_date(text: str, *, future: bool = False) -> str:
    """Checks the value of --run-date and returns it unchanged.

    Args:
        text: the value.
        future: whether the date may be later than tomorrow in UTC (--future). Tomorrow is always allowed,
            because some time zones already have this date.

    Raises:
        ConfigError: the value is not an ISO date, or is later than tomorrow without `future`.
    """
    try:
        day = iso_date(text)
    except ValueError as error:
        raise ConfigError(f"--run-date {text!r} is not a date: {error}", "write it as YYYY-MM-DD") from error
    latest = (datetime.now(UTC).date() + timedelta(days=1)).isoformat()
    if not future and day > latest:
        raise ConfigError(
            f"--run-date {day!r} is later than tomorrow ({latest} in UTC). Lists of a later date would "
            "be served until that day, and sinks would refuse the lists of all days before it",
            "correct the date, or add --future if the log has such dates on purpose",
        )
    return day


def read_section(
    kind: type[Section], values: dict[str, Any], intro: str, fix: str, path: tuple[str, ...] = ()
) -> Section:
    """Checks the values of a section and returns them as an object of its type.

    Args:
        intro, fix: the beginning of the error message, and the remedy.
        path: the keys above the section. The error puts them before the name of each wrong key.

    Raises:
        ConfigError: a key is unknown or missing, or a value breaks its rule. The error lists all these keys,
            up to a limit.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        details = error.errors()
        shown = [_describe({**detail, "loc": (*path, *detail["loc"])}) for detail in details[:_MOST_PROBLEMS]]
        if len(details) > _MOST_PROBLEMS:
            shown.append(f"and {len(details) - _MOST_PROBLEMS:,} more")
        raise ConfigError(f"{intro}{'; '.join(shown)}", fix) from error


def read_package_settings(
    extension: Plugin, values: dict[str, Any], path: tuple[str, ...], other_keys: Iterable[str] = ()
) -> Strict:
    """Checks the settings of an extension, and returns them as an object of the class Settings of its module.

    Args:
        extension: the extension.
        values: the keys of its section that are settings of the extension.
        path: the path of the section in the configuration, for errors.
        other_keys: keys of the same section that every extension of this kind has, for errors.

    Raises:
        ConfigError: the module cannot be imported or has no such class, a key is not one of the settings, or
            a value breaks its rule.
    """
    kind: type[Strict] = extension.settings(Strict)
    return read_section(
        kind,
        values,
        f"{extension.kind.word} {extension.name}: ",
        f"its settings are {sorted({*other_keys, *kind.model_fields})}; correct these keys in the "
        "configuration file or in --set",
        path,
    )


def _describe(error: Any) -> str:
    where = shortened(".".join(str(part) for part in error["loc"])) or "config"
    message = shortened(error["msg"].removeprefix("Value error, "), 1000)
    if error["type"] == "extra_forbidden":
        return f"unknown key {where}={shortened(repr(error['input']))}"
    if error["type"] == "missing":
        return f"{where} is missing"
    shown = "" if isinstance(error["input"], dict | list) else f"={shortened(repr(error['input']))}"
    return f"{where}{shown}: {message}"


def config_digest(config: Config, *sections: str) -> str:
    """Returns a hex digest of the sections `sections`, or of all sections if none are passed.

    The digest depends only on the values of the keys, and not on the file or override that sets a value.
    """
    values = config.model_dump(mode="json")
    chosen = {name: values[name] for name in sections} if sections else values
    return sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]


# The functions below apply one `--set a.b=value`. The value is read as text if the type of the key is text,
# otherwise as YAML.

_QUOTES = ("'", '"')


def set_override(values: dict[str, Any], override: str, kind: type[Strict]) -> None:
    """Sets the key of an override in the values of a section. Creates missing subsections.

    If the type of the key is text, the value is used unchanged: `log.path={data}/*.gz` needs no quotes. If
    the value begins with a quote, it is read as YAML, which removes the quotes. If the key may be null, the
    value `null` means null and not the text "null".

    Args:
        values: the section, which is changed.
        override: a string of the form `a.b=value`.
        kind: the type of the section, which decides whether the value is read as text or as YAML.

    Raises:
        ConfigError: the override is not of the form a.b=value, the value is not YAML, or a key before the
            last one is not a section.
    """
    key, separator, text = override.partition("=")
    if not separator or not all(key.split(".")):
        raise ConfigError(
            f"--set {shortened(repr(override))} is not of the form a.b=value", "write --set section.key=value"
        )
    if len(key.split(".")) > _MOST_DEPTH:
        raise ConfigError(
            f"--set {shortened(repr(override))}: the key has more than {_MOST_DEPTH} parts",
            "write --set section.key=value",
        )
    value = _value(override, text, types_of(kind, key.split(".")))
    set_key(values, key.split("."), value, f"--set {shortened(repr(override))}")


def set_key(values: dict[str, Any], keys: list[str], value: Any, what: str) -> None:
    """Sets a key of nested sections. Creates missing sections.

    Args:
        values: the section that contains the first of the keys; it is changed.
        keys: the parts of the key's path, such as `["train", "epochs"]`.
        value: the new value.
        what: the beginning of the error message, such as the --set option that sets the key.

    Raises:
        ConfigError: a key before the last one is not a section.
    """
    target = values
    for parent in keys[:-1]:
        if target.get(parent) is None:
            target[parent] = {}
        target = target[parent]
        if not isinstance(target, dict):
            raise ConfigError(
                f"{what}: {shortened(parent)} is {shortened(repr(target))}, not a section",
                f"remove the keys after {shortened(parent)}, or write a key of a section",
            )
    target[keys[-1]] = value


def _value(override: str, text: str, types: tuple[Any, ...]) -> Any:
    if str in types and set(types) <= {str, type(None)} and not text.startswith(_QUOTES):
        return None if text == "null" and type(None) in types else text
    try:
        return _load_yaml(text)
    except NOT_YAML as error:
        raise ConfigError(
            f"--set {shortened(repr(override))}: the value is not YAML: {yaml_problem(error)}",
            "write the value as in a YAML file; text with special characters needs quotes",
        ) from error


def types_of(kind: Any, keys: list[str]) -> tuple[Any, ...]:
    """Returns the types that the value of a key may have; empty if the key is unknown.

    Args:
        kind: the type of the section that contains the first of the keys.
        keys: the parts of the key's path, such as `["train", "epochs"]`.
    """
    types = _members(kind)
    for key in keys:
        below: list[Any] = []
        for member in types:
            if get_origin(member) is dict:
                below += _members(get_args(member)[1])
            elif isinstance(member, type) and issubclass(member, Strict):
                annotation = member.annotation_of(key)
                below += () if annotation is None else _members(annotation)
        types = tuple(below)
    return types


def _members(annotation: Any) -> tuple[Any, ...]:
    """Returns the member types of a union, or the type itself if it is not a union.

    The metadata of Annotated is removed.
    """
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return (annotation,)


# The functions below read configuration files and model files in YAML, and resolve `extends`.

# Errors that PyYAML raises in addition to YAMLError. Examples of their causes are a date with the month 13,
# the integer `0x_`, a list as a key, and an alias that contains itself.
NOT_YAML = (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError)

# Limits of a YAML text. The configurations of the project have fewer than 10,000 characters.
_MOST_TEXT = 1 << 20  # bytes of a file, or characters of a value of --set
_MOST_REPEATED = 4 << 20  # characters of all values, after each alias is replaced by its value
_MOST_DEPTH = 50
_MOST_KEY = 1000


def read_config_file(path: Path) -> dict[str, Any]:
    """Reads the mapping in a configuration file.

    If the file `extends` another file, the mappings of both files are merged key by key.

    Raises:
        ConfigError: see `read_yaml`; or a file extends itself, directly or through other files.
    """
    return _read(path, ())


def read_models(values: dict[str, Any], path: Path) -> None:
    """Reads the model files that `model` and sources of candidates name, and inserts their mappings.

    Args:
        values: the mapping of the configuration file, which is changed.
        path: the configuration file. The paths of model files are relative to its folder.
    """
    for section in _with_models(values):
        if isinstance(section.get("model"), str):
            section["model"] = read_yaml(_beside(path, section["model"], "model"))


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping in one YAML file.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8 or YAML, has a key twice, contains no mapping, or
            exceeds a limit.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_TEXT + 1)
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL character
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"cannot read {path}: {reason}", "give the path of a YAML file that exists"
        ) from error
    if len(content) > _MOST_TEXT:
        raise ConfigError(
            f"{path} has more than {_MOST_TEXT:,} bytes, the largest size of a configuration file",
            "give the path of a configuration file",
        )
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
    """Returns the value of a YAML text. Errors contain `where`, the file or argument with the text.

    Raises:
        ConfigError: the text is not YAML, or has a key twice.
    """
    try:
        return _load_yaml(text)
    except NOT_YAML as error:
        raise ConfigError(f"{where} is not YAML: {yaml_problem(error)}", "correct its syntax") from error


def yaml_problem(error: BaseException) -> str:
    """Returns a description of the problem that PyYAML found."""
    return (
        "an alias contains itself, or values are nested too deeply"
        if isinstance(error, RecursionError)
        else shortened(str(error), 500)
    )


def _load_yaml(text: str) -> Any:
    """Returns the value of a YAML text.

    Raises one of the errors in NOT_YAML if the text is not YAML or exceeds a limit.
    """
    if len(text) > _MOST_TEXT:
        raise yaml.YAMLError(f"the text has {len(text):,} characters; at most {_MOST_TEXT:,} are allowed")
    return pickle.loads(_pickled(text))


@lru_cache(maxsize=32)
def _pickled(text: str) -> bytes:
    """Returns the value of a YAML text, pickled.

    PyYAML needs 20 ms for a configuration. The stages of a run and the files that extend a file read the same
    texts again. Each caller gets a copy of its own, because callers change the value.
    """
    return pickle.dumps(yaml.load(text, Loader=_Loader))


def _read(path: Path, children: tuple[Path, ...]) -> dict[str, Any]:
    absolute = _absolute(path)
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
        if isinstance(section.get("model"), str):  # the value is a path relative to the file that contains it
            section["model"] = str(_absolute(base_path.parent / section["model"]))
    return _merge(base, values)


def _absolute(path: Path) -> Path:
    """Returns the absolute path without symbolic links. Links that form a loop stay in the path."""
    return Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for such links


def _beside(path: Path, named: Any, key: str) -> Path:
    """Returns the path of the file `named`, a name that is relative to the folder of the file `path`.

    Raises:
        ConfigError: `named`, the value of `key` in the file `path`, is not a file name.
    """
    if not isinstance(named, str) or not named or "\0" in named:
        raise ConfigError(
            f"{path}: {key}={shortened(repr(named))} does not name a file", f"write {key}: other.yaml"
        )
    return path.parent / named


def _with_models(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a configuration and its candidate sources: their key `model` may be the path of a file."""
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
    """A YAML loader with limits, which refuses a key that occurs twice. PyYAML silently uses the last value.

    A value with an anchor can be repeated by aliases, also within other values with anchors. So a few hundred
    bytes can stand for billions of values. PyYAML stores a repeated value only once, but code that copies,
    checks or prints the values would need hours. The loader counts repeated values while it parses the text.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[
            yaml.Node, int
        ] = {}  # number of characters of each value, including the values within it

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Parses a value.

        Raises YAMLError if the value is too deep or too large, or if it contains itself.
        """
        alias = self.peek_event() if self.check_event(yaml.AliasEvent) else None
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise yaml.YAMLError(f"values are nested too deeply: more than {_MOST_DEPTH} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if alias is not None:
            if node not in self._sizes:
                raise yaml.YAMLError(f"an alias contains itself: {shortened(alias.anchor)}")
            return node
        self._sizes[node] = size = 1 + self._size_of_parts(node)
        if size > _MOST_REPEATED:
            raise yaml.YAMLError(
                f"a value has more than {_MOST_REPEATED:,} characters, with the values that aliases repeat"
            )
        return node

    def _size_of_parts(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return len(node.value)
        if isinstance(node, yaml.SequenceNode):
            return sum(self._sizes[item] for item in node.value)
        return sum(self._sizes[key] + self._sizes[value] for key, value in node.value)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Converts a node to a mapping; raises YAMLError for a key that occurs twice."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise yaml.YAMLError(
                    "the key << is not supported: write the keys of the mapping that it refers to, or move "
                    f"them to a file that this file extends (`extends: other.yaml`){key_node.start_mark}"
                )
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.YAMLError(f"the key {shortened(repr(key))} is not text{key_node.start_mark}")
            if isinstance(key, str) and len(key) > _MOST_KEY:
                raise yaml.YAMLError(
                    f"the key {shortened(repr(key))} has more than {_MOST_KEY:,} characters"
                    f"{key_node.start_mark}"
                )
            if key in seen:
                raise yaml.YAMLError(f"the key {shortened(repr(key))} occurs twice{key_node.start_mark}")
            seen.add(key)
        return super().construct_mapping(node, deep)
