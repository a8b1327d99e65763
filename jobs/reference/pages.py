"""Makes docs/configuration.md and docs/models.md, with a table of keys for each section."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from conf.experiments import ExperimentRun, Experiments, Search, SearchedValues
from conf.reference import field_table
from conf.train_types import built_in_losses
from conf.types import ModelConfig, Train
from jobs.reference.json_schema import documented_config
from training.settings.architectures import model_sections

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
* [Operators](operators/README.md) describes the entries of `ops` in `features`, and of `prepare`.
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
