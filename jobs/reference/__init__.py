"""Generates the reference files: pages and JSON schemas of the configuration, and docs/roads.md (roads.py).

A page has a table of keys for each section. The schemas are for editors that complete and check YAML.

A file that `extends` another file may leave out the keys that the other file contains. So the schemas require
keys only in files without `extends`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, create_model

from conf.experiments import ExperimentRun, Experiments, Search, SearchedValues
from conf.list_types import ListRules, SourceSettings, built_in_rules, built_in_sources
from conf.plugins import SINK, Plugin, summary
from conf.reference import Schema, alternatives, field_table
from conf.stage_types import Score
from conf.train_types import built_in_losses
from conf.types import Candidates, Config, Deliver, ModelConfig, SinkSettings, Train
from etl.ops import FRAME_OPERATORS, OPERATORS
from etl.ops.base import Parameters
from training.settings.check_settings import model_sections, models_adapter

_DRAFT = "http://json-schema.org/draft-07/schema#"
_PREFIX = "#/$defs/"
_NEEDS_ARCHITECTURE: Schema = {"anyOf": [{"type": "string"}, {"required": ["architecture"]}]}


def generated_files() -> dict[str, str]:
    """Returns the contents of all generated files by path. Paths are relative to the root of the checkout."""
    from jobs.reference.roads import roads_page  # this module imports Spark, which schemas do not need

    return {
        "conf/schema.json": _json(config_schema()),
        "conf/model_schema.json": _json(model_schema()),
        "docs/configuration.md": configuration_page(),
        "docs/models.md": models_page(),
        "docs/roads.md": roads_page(),
    }


def _json(schema: Schema) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def config_schema() -> Schema:
    """Returns the schema of a configuration file.

    The schema allows the key `extends`. `model` may be a section or the path of a file. An operator without
    required parameters may be written as only its name.
    """
    schema = _without_titles(documented_config().model_json_schema())
    definitions = schema.pop("$defs") | _model_definitions() | _operator_definitions()
    definitions["ModelConfig"] = {
        "anyOf": [
            {"type": "string", "description": "Path of a model file, relative to this file."},
            {"$ref": f"{_PREFIX}Model"},
        ]
    }
    definitions["FeatureGroup"]["properties"]["ops"]["items"] = {"$ref": f"{_PREFIX}FeatureEntry"}
    for member in alternatives(definitions["Candidates"]["properties"]["sources"]["items"]):
        of_source = definitions[member["$ref"].removeprefix(_PREFIX)]["properties"]
        if "model" in of_source:
            of_source["model"] = {"allOf": [{"$ref": f"{_PREFIX}ModelConfig"}, _NEEDS_ARCHITECTURE]}
    properties = schema["properties"]
    properties["prepare"]["items"] = {"$ref": f"{_PREFIX}PrepareEntry"}
    sections: set[str] = set()
    required = _required(schema, definitions, sections)
    for name in sections:
        definitions[name].pop("required", None)
    extends = {
        "type": "string",
        "description": "Path of another configuration file, relative to this file. The keys of this file "
        "replace those of the other file.",
    }
    return {
        "$schema": _DRAFT,
        "title": "Configuration of Nightrank",
        "description": schema["description"],
        "type": "object",
        "additionalProperties": False,
        "properties": {"extends": extends, **properties},
        "if": {"required": ["extends"]},
        "else": required,
        "$defs": dict(sorted(definitions.items())),
    }


def model_schema() -> Schema:
    """Returns the schema of a model file."""
    definitions = _model_definitions()
    return {
        "$schema": _DRAFT,
        "title": "Model of Nightrank",
        "allOf": [definitions.pop("Model"), {"required": ["architecture"]}],
        "$defs": dict(sorted(definitions.items())),
    }


def _model_definitions() -> dict[str, Schema]:
    """Returns the definition `Model` and the definitions of all architectures that it refers to.

    The definitions do not require the key `architecture`, because a configuration may inherit this key from
    the file that it `extends`.
    """
    schema = _without_titles(models_adapter().json_schema())
    definitions: dict[str, Schema] = schema.pop("$defs")
    members = [member["$ref"].removeprefix(_PREFIX) for member in schema["oneOf"]]
    for name in members:
        definitions[name].pop("required", None)
    return definitions | {"Model": {"anyOf": [{"$ref": f"{_PREFIX}{name}"} for name in members]}}


def _operator_definitions() -> dict[str, Schema]:
    """Returns a definition for the parameters of each operator, and `FeatureEntry` and `PrepareEntry`.

    `FeatureEntry` is an entry of `ops`, and `PrepareEntry` an entry of the section `prepare`.
    """
    features = [operator for operator, _ in OPERATORS.values()]
    definitions = {
        "FeatureEntry": _entry(features),
        "PrepareEntry": _entry(FRAME_OPERATORS.values()),
    }
    for operator in (*features, *FRAME_OPERATORS.values()):
        schema = _without_titles(operator.model_json_schema())
        schema["description"] = " ".join(schema["description"].partition("\n\n")[0].split())
        definitions |= schema.pop("$defs", {})
        definitions[_definition_name(operator)] = schema
    return definitions


def _entry(operators: Iterable[type[Parameters]]) -> Schema:
    """Returns the schema of an entry of `ops` or `prepare`.

    An entry is `{name: parameters}`, or only the name if the operator has no required parameter.
    """
    short: list[str] = []
    properties: dict[str, Schema] = {}
    for operator in operators:
        reference = {"$ref": f"{_PREFIX}{_definition_name(operator)}"}
        required = any(field.is_required() for field in operator.model_fields.values())
        short += [] if required else [operator.name]
        properties[operator.name] = reference if required else {"anyOf": [reference, {"type": "null"}]}
    mapping = {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
        "properties": properties,
    }
    return {"anyOf": [{"enum": short}, mapping] if short else [mapping]}


def _definition_name(operator: type[Parameters]) -> str:
    return f"{operator.__name__}Operator"


def _required(schema: Schema, definitions: dict[str, Schema], sections: set[str]) -> Schema:
    """Returns a schema that requires the required keys of a section and of its subsections.

    Adds the names of the subsections to `sections`. Sections in lists are left out, because a file that
    extends another file replaces complete lists.
    """
    required: Schema = {"required": schema["required"]} if schema.get("required") else {}
    properties: dict[str, Schema] = {}
    for name, value in schema.get("properties", {}).items():
        if value.get("$ref") == f"{_PREFIX}ModelConfig":
            properties[name] = _NEEDS_ARCHITECTURE
            continue
        mapped = isinstance(value.get("additionalProperties"), dict)
        section = _section_name(value["additionalProperties"] if mapped else value)
        if section is None:
            continue
        sections.add(section)
        inner = _required(definitions[section], definitions, sections)
        if inner:
            properties[name] = {"additionalProperties": inner} if mapped else inner
    return required | ({"properties": properties} if properties else {})


def _section_name(value: Schema) -> str | None:
    """Returns the name of the definition that a field refers to; None without a reference."""
    references = [member["$ref"] for member in alternatives(value) if "$ref" in member]
    return references[0].removeprefix(_PREFIX) if references else None


def _without_titles(schema: Any) -> Any:
    """Returns a copy of a schema without the titles that pydantic derives from names."""
    if isinstance(schema, list):
        return [_without_titles(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


# The functions below create the type of a configuration for documents, with the plug-ins of the checkout.
#
# Config finds rules and sinks by name, so its type does not list them. The documents do not include plug-ins
# of other packages.


def documented_config() -> type[Config]:
    """Returns the type of a configuration. Its sinks and sources are unions of all types in the checkout."""
    members: list[Any] = [_sink(plugin) for plugin in SINK.plugins()]
    sink: Any = Annotated[reduce(or_, members), Field(discriminator="kind")]
    sinks: Any = (list[sink], Deliver.model_fields["sinks"])
    deliver = create_model("Deliver", __base__=Deliver, __doc__=Deliver.__doc__, sinks=sinks)
    candidates = _candidates()
    score = create_model("Score", __base__=Score, __doc__=Score.__doc__, rules=_rules())
    fields: Any = {
        "candidates": (candidates, _field(Config, "candidates", candidates())),
        "score": (score, Config.model_fields["score"]),
        "deliver": (deliver, Config.model_fields["deliver"]),
    }
    return create_model("Config", __base__=Config, __doc__=Config.__doc__, **fields)


def _candidates() -> type[Candidates]:
    """Returns the type of the section `candidates`.

    Its sources are a union of all sources in the checkout.
    """
    sections = {name: _source(name, kind) for name, kind in built_in_sources().items()}
    every_item = sections["all_items"](source="all_items")
    members: list[Any] = list(sections.values())
    source: Any = Annotated[reduce(or_, members), Field(discriminator="source")]
    listed: Any = Annotated[list[source], *Candidates.model_fields["sources"].metadata]
    sources: Any = (listed, _field(Candidates, "sources", [every_item]))
    return create_model("Candidates", __base__=Candidates, __doc__=Candidates.__doc__, sources=sources)


def _source(name: str, settings: type[SourceSettings]) -> type[SourceSettings]:
    """Returns the type of the section of a source. The key `source` allows only the name of this source."""
    only: Any = Literal[name]
    text = summary(settings).partition(": ")[2] or summary(settings)
    named = Field(description=text[:1].upper() + text[1:])
    return create_model(_class_name(name), __base__=settings, __doc__=settings.__doc__, source=(only, named))


def _field(section: type[BaseModel], name: str, default: Any) -> Any:
    """Returns a field of a section. Its default is a value instead of a function that creates the value."""
    return Field(default=default, description=section.model_fields[name].description)


def _sink(plugin: Plugin) -> type[SinkSettings]:
    """Returns the type of the section of a sink. The key `kind` allows only the kind of this sink."""
    settings: type[SinkSettings] = plugin.settings(SinkSettings)
    path = plugin.module.replace(".", "/")
    only: Any = Literal[plugin.name]
    named = Field(description=f"`{plugin.name}` selects the sink in {path}.py.")
    name = f"{_class_name(plugin.name)}Sink"
    return create_model(name, __base__=settings, __doc__=settings.__doc__, kind=(only, named))


def _rules() -> Any:
    """Returns the field `score.rules`. Its type has a key for each rule of the checkout."""
    rules: dict[str, Any] = {}
    for name, kind in built_in_rules().items():
        section = create_model(_class_name(name), __base__=kind, __doc__=kind.__doc__)
        text = f"{summary(kind)} Null: the rule is not applied."
        rules[name] = (section | None, Field(default=None, description=text))
    of_lists = create_model("ListRules", __base__=ListRules, __doc__=ListRules.__doc__, **rules)
    return of_lists | None, Score.model_fields["rules"]


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


# The functions below create docs/configuration.md and docs/models.md, with a table of keys for each section.

_HEAD = (
    "<!-- Made from the types in conf and the settings of plug-ins by `make docs`; changes here are lost. "
    "-->\n"
)

_CONFIGURATION = """# Configuration

This page is for everyone who writes a configuration file. It lists every key of a file with its type, its
default and its meaning. One YAML file configures all jobs of one log. An unknown key is an error.

* `extends: other.yaml` reads another configuration file first. Its path is relative to this file. The keys of
  this file then replace those of the other file: sections are merged key by key, and lists are replaced.
* `model` is a section or the path of a model file, such as those in `conf/models`. [Models](models.md) lists
  the settings of each architecture.
* `--set train.epochs=2` on the command line of a job changes one key after the file is read.
* [Operators](operators/README.md) describes the entries of `prepare`, and those of `ops` in `features`.
* [Examples](examples.md) has an example of every source, filter, sink and operator, and of every setting that
  has only certain values.

Many editors complete and check a YAML file if its first line names a JSON schema. The first line of the
configuration files in `conf/datasets` is `# yaml-language-server: $schema=../schema.json`. The first line of
a model file names `conf/model_schema.json`.
"""

_EXPERIMENTS = """## Experiments file

The job compare_models reads this file in addition to the configuration
([training.md](training.md#compare-models)).
"""

_MODELS = """# Models

This page is for everyone who chooses a model. It lists the architectures and their settings: the keys of a
model file, such as those in `conf/models`, or of the section `model` of a [configuration](configuration.md).

## Keys of every model
"""


def configuration_page() -> str:
    """Returns the text of docs/configuration.md."""
    config = documented_config()
    sections = dict(_sections(config, ""))
    links = {kind.__name__: f"[section](#{_anchor(path)})" for kind, path in sections.items() if path}
    links["ModelConfig"] = "[section](models.md) or text"
    parts = [_HEAD, _CONFIGURATION, "## Top level\n", _documented(config, links)]
    for kind, path in sections.items():
        if path and kind is not ModelConfig:
            parts += [f"## `{path}`\n", _documented(kind, links)]
        if kind is Train:
            with_keys = [(name, loss) for name, loss in built_in_losses().items() if loss.model_fields]
            for name, loss in with_keys:
                parts += [f"## `train.loss {name}`\n", _documented(loss, {})]
    links = {"ExperimentRun": "[section](#runs)", "Search": "[section](#search)"}
    parts += [_EXPERIMENTS, _documented(Experiments, links)]
    parts += ["### `runs`\n", _documented(ExperimentRun, {})]
    parts += ["### `search`\n", _documented(Search, {"SearchedValues": "[section](#searchspace)"})]
    parts += ["### `search.space`\n", _documented(SearchedValues, {})]
    return "\n".join(parts)


def models_page() -> str:
    """Returns the text of docs/models.md."""
    common = dict(_sections(ModelConfig, ""))
    links = {kind.__name__: f"[section](#{_anchor(path)})" for kind, path in common.items() if path}
    parts = [_HEAD, _MODELS]
    for kind, path in common.items():
        parts += [*([f"### `{path}`\n"] if path else []), _documented(kind, links)]
    for architecture, section in model_sections().items():
        settings = section.__bases__[0]
        nested = dict(_sections(settings, architecture))
        links = {kind.__name__: f"[section](#{_anchor(path)})" for kind, path in nested.items()}
        for kind, path in nested.items():
            level = "##" if kind is settings else "###"
            parts += [f"{level} `{path}`\n", _documented(kind, links)]
    return "\n".join(parts)


def _documented(kind: type[BaseModel], links: Mapping[str, str]) -> str:
    """Returns Markdown with the docstring of a section and the table of its keys."""
    return (
        f"{inspect.cleandoc(kind.__doc__ or '')}\n\n{field_table(kind, links) if kind.model_fields else ''}"
    )


def _sections(kind: type[BaseModel], path: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Yields a pair (type, path of keys) for a section and for all sections in it, once for each type."""
    yielded: dict[type[BaseModel], str] = {kind: path}
    yield kind, path
    for name, field in kind.model_fields.items():
        members = list(_models_in(field.annotation))
        for member in members:
            inner = f"{path}.{name}" if path else name
            if len(members) > 1:
                inner += f" {_tag(member)}"
            for section, below in _sections(member, inner):
                if section not in yielded:
                    yielded[section] = below
                    yield section, below


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the sections that the type of a field contains."""
    if get_origin(annotation) is Annotated:
        yield from _models_in(get_args(annotation)[0])
    elif get_args(annotation):
        for argument in get_args(annotation):
            yield from _models_in(argument)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _tag(kind: type[BaseModel]) -> str:
    """Returns the value of the key by which a union of sections selects `kind`.

    This key is the first key of `kind` that allows only one value.
    """
    types = [field.annotation for field in kind.model_fields.values()]
    return next(
        get_args(only)[0] for only in types if get_origin(only) is Literal and len(get_args(only)) == 1
    )


def _anchor(path: str) -> str:
    """Returns the link anchor of a section's heading. `path` is the section's path of keys."""
    return path.replace(".", "").replace(" ", "-").lower()
