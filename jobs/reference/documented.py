"""The type of a configuration for documents, with the plug-ins of the checkout.

Config finds rules and sinks by name, so its type does not list them. Plug-ins of other packages are not in
the documents.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from conf.plugins import SINK, Plugin, summary
from conf.rule_types import ListRules, built_in_rules
from conf.source_types import SourceSettings, built_in_sources
from conf.stage_types import Score
from conf.types import Candidates, Config, Deliver, SinkSettings


def documented_config() -> type[Config]:
    """Returns the type of a configuration whose sinks and sources are unions of those in this checkout."""
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
    """Returns the type of the section `candidates`, whose sources are a union of those of the checkout."""
    sections = {name: _source(name, kind) for name, kind in built_in_sources().items()}
    every_item = sections["all_items"](source="all_items")
    members: list[Any] = list(sections.values())
    source: Any = Annotated[reduce(or_, members), Field(discriminator="source")]
    listed: Any = Annotated[list[source], *Candidates.model_fields["sources"].metadata]
    sources: Any = (listed, _field(Candidates, "sources", [every_item]))
    return create_model("Candidates", __base__=Candidates, __doc__=Candidates.__doc__, sources=sources)


def _source(name: str, settings: type[SourceSettings]) -> type[SourceSettings]:
    """Returns the type of the section of a source: `source` has only this value."""
    only: Any = Literal[name]
    text = summary(settings).partition(": ")[2] or summary(settings)
    named = Field(description=text[:1].upper() + text[1:])
    return create_model(_class_name(name), __base__=settings, __doc__=settings.__doc__, source=(only, named))


def _field(section: type[BaseModel], name: str, default: Any) -> Any:
    """Returns a field of a section with a default in place of the function that makes it."""
    return Field(default=default, description=section.model_fields[name].description)


def _sink(plugin: Plugin) -> type[SinkSettings]:
    """Returns the type of the section of a sink: `kind` has only this value."""
    settings: type[SinkSettings] = plugin.settings(SinkSettings)
    path = plugin.module.replace(".", "/")
    only: Any = Literal[plugin.name]
    named = Field(description=f"`{plugin.name}` selects the sink in {path}.py.")
    name = f"{_class_name(plugin.name)}Sink"
    return create_model(name, __base__=settings, __doc__=settings.__doc__, kind=(only, named))


def _rules() -> Any:
    """Returns the field `score.rules`, whose type has a key for each rule of the checkout."""
    rules: dict[str, Any] = {}
    for name, kind in built_in_rules().items():
        section = create_model(_class_name(name), __base__=kind, __doc__=kind.__doc__)
        text = f"{summary(kind)} Null: the rule is not applied."
        rules[name] = (section | None, Field(default=None, description=text))
    of_lists = create_model("ListRules", __base__=ListRules, __doc__=ListRules.__doc__, **rules)
    return of_lists | None, Score.model_fields["rules"]


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
