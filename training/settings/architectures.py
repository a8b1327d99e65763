"""The type of the section `model`: a union with one member per architecture, by the key `architecture`."""

from __future__ import annotations

from functools import lru_cache, reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, create_model

from conf.plugins import MODEL
from conf.types import ModelConfig, Strict


@lru_cache(maxsize=64)
def section_of(architecture: str, settings: type[Strict]) -> type[Strict]:
    """Returns the type of an architecture's section `model`: its settings and the keys of all models."""
    common: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in ModelConfig.model_fields.items()
        if name != "architecture"
    }
    only: Any = Literal[architecture]
    named = Field(
        description=f"`{architecture}` selects the model in training/architectures/{architecture}.py."
    )
    return create_model(
        f"{''.join(part.capitalize() for part in architecture.split('_'))}Model",
        __base__=settings,
        __doc__=settings.__doc__,
        architecture=(only, named),
        **common,
    )


def model_sections() -> dict[str, type[Strict]]:
    """Maps each architecture of the checkout to the type of its section."""
    return {one.name: section_of(one.name, one.settings(Strict)) for one in MODEL.plugins()}


def models_adapter() -> TypeAdapter[Any]:
    """Returns the parser of a section `model`. The key `architecture` selects the type."""
    members: list[Any] = list(model_sections().values())
    union: Any = Annotated[reduce(or_, members), Field(discriminator="architecture")]
    return TypeAdapter(union)
