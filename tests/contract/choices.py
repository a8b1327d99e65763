"""The closed choices of the configuration, the pages that describe them, and examples that make them.

A choice is a member of a discriminated union, such as the source `popular`, an operator or an architecture, or
one value of a setting that has only certain values, such as `train.loss: bpr`. Choices are read from the pydantic
models, so a new member is a new choice.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo

from conf.experiments import Experiments, read_experiments
from conf.load import load_config
from conf.plugins import PluginNames
from conf.types import Config, ModelConfig
from etl.ops import FRAME_OPERATORS, OPERATORS, frame_operator_from_config, operator_from_config
from jobs.checks import check_config, check_training
from jobs.reference import documented_config
from training.settings.check_settings import model_sections, models_adapter

ROOT = Path(__file__).parents[2]
EXAMPLES = "docs/examples.md"
BASE = "generated_named.yaml"  # what an example of the page extends, unless it says otherwise
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

_OPERATOR_NAMES: Mapping[type[BaseModel], str] = {
    **{operator: name for name, (operator, _) in OPERATORS.items()},
    **{operator: name for name, operator in FRAME_OPERATORS.items()},
}

# Class that declares a setting, key, value. The key of an operator is empty, because its name is the tag.
Identity = tuple[str, str, Any]


@dataclass(frozen=True)
class Choice:
    """One member of a union, or one value of a setting.

    Attributes:
        owner: the class that declares the setting, or the class of the member.
        key: the setting, or the key that selects a member.
        value: the value of the key.
        is_member: whether the choice is a member of a union, which a section of a page describes.
        page: the page that describes the choice.
        heading: the heading of the page below which it does.
    """

    owner: type[BaseModel]
    key: str
    value: Any
    is_member: bool
    page: str
    heading: str

    @property
    def identity(self) -> Identity:
        return f"{self.owner.__module__}.{self.owner.__qualname__}", self.key, self.value

    @property
    def setting(self) -> str:
        return f"{self.key}: {self.value}" if self.key else f"ops: [{self.value}]"

    def __str__(self) -> str:
        return f"{self.setting} ({self.page}, {self.heading})"


def configuration_choices() -> list[Choice]:
    """Returns the choices of configuration files, experiments files, models and operators."""
    choices = [
        *choices_of(documented_config(), "docs/configuration.md", "Top level", ""),
        *choices_of(Experiments, "docs/configuration.md", "Experiments file", ""),
    ]
    choices += choices_of(ModelConfig, "docs/models.md", "Keys of every model", "")
    for name, section in model_sections().items():
        choices.append(Choice(section, "architecture", name, True, "docs/models.md", f"`{name}`"))
        choices += choices_of(section.__bases__[0], "docs/models.md", f"`{name}`", name)
    operators = [*(operator for operator, _ in OPERATORS.values()), *FRAME_OPERATORS.values()]
    for operator in operators:
        page = f"docs/operators/{operator.page}.md"
        choices.append(Choice(operator, "", operator.name, True, page, operator.name))
        choices += choices_of(operator, page, operator.name, operator.name)
    return choices


def choices_of(
    kind: type[BaseModel], page: str, heading: str, path: str, selected_by: str = ""
) -> Iterator[Choice]:
    """Yields the choices of a section and of the sections in it; a section in two places yields them twice.

    Args:
        kind: the type of the section.
        page: the page that describes it.
        heading: the heading of the page below which it does.
        path: the path of its keys.
        selected_by: the key that selects the section in a union. Its only value is no choice of the section.
    """
    for name, info in kind.model_fields.items():
        if name != selected_by:
            for value in [*literals(info.annotation), *_enum(info)]:
                yield Choice(declaring(kind, name), name, value, False, page, heading)
        for member, discriminator in _models(info.annotation, str(info.discriminator or "")):
            inner = f"{path}.{name}".lstrip(".")
            if discriminator:
                (tag,) = literals(member.model_fields[discriminator].annotation)
                inner += f" {tag}"
                owner = declaring(member, discriminator)
                yield Choice(owner, discriminator, tag, True, page, f"`{inner}`")
            yield from choices_of(member, page, f"`{inner}`", inner, discriminator)


def literals(annotation: Any) -> list[Any]:
    """Returns the values of all Literals in a type."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return list(arguments)
    return [value for argument in arguments for value in literals(argument)]


def _enum(info: FieldInfo) -> list[Any]:
    """Returns the values that the schema of a setting lists, if packages may add others, such as formats."""
    schemas = [one.json_schema or {} for one in info.metadata if isinstance(one, WithJsonSchema)]
    names = [name for one in info.metadata if isinstance(one, PluginNames) for name in one.kind.built_in()]
    return [*names, *(value for schema in schemas for value in schema.get("enum", ()))]


def _models(annotation: Any, discriminator: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Yields the sections in a type, each with the discriminator of its union; empty if there is none."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        infos = [info for info in arguments[1:] if isinstance(info, FieldInfo) and info.discriminator]
        yield from _models(arguments[0], str(infos[0].discriminator) if infos else discriminator)
    elif arguments:
        for argument in arguments:
            yield from _models(argument, discriminator)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, discriminator


def declaring(kind: type[BaseModel], name: str) -> type[BaseModel]:
    """Returns the class that declares a field: `kind`, or one that it inherits from."""
    if kind in _model_sections().values() and name != "architecture" and name in ModelConfig.model_fields:
        return ModelConfig  # the generated section of an architecture copies the keys of every model
    return next(base for base in kind.__mro__ if name in vars(base).get("__annotations__", {}))


def undocumented(choices: Iterable[Choice], pages: Mapping[str, str]) -> list[str]:
    """Returns a problem with its remedy for each choice that no page describes.

    A section with text below its heading describes a member. A table row whose description has the value in
    backticks describes a value.
    """
    places: dict[Identity, list[Choice]] = {}
    for choice in choices:
        places.setdefault(choice.identity, []).append(choice)
    sections = {page: _sections(text) for page, text in pages.items()}
    return [
        _how_to_document(same[0])
        for same in places.values()
        if not any(
            _describes(sections.get(choice.page, {}).get(choice.heading, ""), choice) for choice in same
        )
    ]


def _sections(page: str) -> dict[str, str]:
    """Maps each heading of a page to the text below it."""
    _, *parts = _HEADING.split(page)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _describes(text: str, choice: Choice) -> bool:
    if choice.is_member:
        return re.match(r"\w", text.strip()) is not None  # not a table
    row = re.search(rf"^\| `{re.escape(choice.key)}` \|.*\| ([^|]*) \|$", text, re.MULTILINE)
    return row is not None and f"`{choice.value}`" in row[1]


def _how_to_document(choice: Choice) -> str:
    name, file = _source_of(choice.owner)
    if choice.is_member:
        line = f'"""What {choice.value} is."""'
        return f"{choice}: add a docstring such as {line} to the class {name} in {file}, and run `make docs`"
    return (
        f"{choice}: add `{choice.value}` and its meaning, such as "
        f'"`{choice.value}`: …", to the description of the field {choice.key} of {name} in {file}, and run '
        "`make docs`"
    )


def _source_of(kind: type[BaseModel]) -> tuple[str, str]:
    """Returns the name and the file of a class; of a generated class, those of the class it inherits from."""
    for base in kind.__mro__:
        with suppress(OSError):  # no file has the source of a generated class
            inspect.getsourcelines(base)
            return base.__qualname__, str(Path(inspect.getfile(base)).relative_to(ROOT))
    raise LookupError(kind)


def without_example(choices: Iterable[Choice], shown: set[Identity]) -> list[str]:
    """Returns a problem with its remedy for each choice that is not among those that examples make."""
    missing = {choice.identity: choice for choice in choices if choice.identity not in shown}
    return [
        f"{choice}: add an example to {EXAMPLES}, such as a line `--- {{…: {{{choice.setting}}}}}` with the "
        "keys above it in place of …"
        for choice in missing.values()
    ]


def documents(page: str) -> list[Any]:
    """Returns the YAML documents in the code blocks of a page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def load_document(document: Mapping[str, Any], folder: Path) -> list[BaseModel]:
    """Loads a document of the page of examples as a file in conf/datasets, and returns its sections.

    Raises:
        ConfigError: the configuration loader or the checks of the jobs refuse it.
    """
    if not (folder / "datasets").exists():
        shutil.copytree(ROOT / "conf/datasets", folder / "datasets")
        shutil.copytree(ROOT / "conf/models", folder / "models")
    path = folder / "datasets/example.yaml"
    is_configuration = not {"runs", "grid", "search"} & set(document)
    path.write_text(yaml.safe_dump({"extends": BASE, **document} if is_configuration else document))
    if not is_configuration:
        return [read_experiments(str(path))]
    config = load_config(str(path))
    check_config(config)
    check_training(config)
    return _sections_of(config)


_documented_config, _model_sections = cache(documented_config), cache(model_sections)


def _sections_of(config: Config) -> list[BaseModel]:
    """Returns the configuration with typed sinks, the settings of its model, and its operators."""
    typed = _documented_config().model_validate(config.model_dump(exclude_unset=True))
    model = models_adapter().validate_python(config.model.model_dump(exclude_unset=True))
    operators = [operator_from_config(entry) for group in config.features for entry in group.ops]
    return [typed, model, *operators, *map(frame_operator_from_config, config.prepare)]


def explicit_choices(section: BaseModel) -> Iterator[Identity]:
    """Yields the choices that a section makes explicitly, not those that it makes by a default."""
    kind = type(section)
    if kind in _OPERATOR_NAMES:
        yield f"{kind.__module__}.{kind.__qualname__}", "", _OPERATOR_NAMES[kind]
    for name in section.model_fields_set & kind.model_fields.keys():
        info = kind.model_fields[name]
        allowed = [*literals(info.annotation), *_enum(info)]
        owner = declaring(kind, name)
        for value in _leaves(getattr(section, name)):
            if isinstance(value, BaseModel):
                yield from explicit_choices(value)
            elif value in allowed:
                yield f"{owner.__module__}.{owner.__qualname__}", name, value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
