"""The type of the section `model`: a union with one member per architecture, by the key `architecture`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, create_model

from conf.types import ModelConfig, Strict
from training.settings import (
    bert4rec,
    dcn_v2,
    deepfm,
    din,
    dlrm,
    logistic_regression,
    mult_vae,
    neumf,
    sasrec,
    two_tower,
    wide_and_deep,
)


def model_section(architecture: str, settings: type[Strict]) -> type[Strict]:
    """Returns the type of an architecture's section `model`: its settings and the keys of all models."""
    common: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in ModelConfig.model_fields.items()
        if name != "architecture"
    }
    only: Any = Literal[architecture]
    named = Field(description=f"`{architecture}` selects the model in training/models/{architecture}.py.")
    return create_model(
        f"{''.join(part.capitalize() for part in architecture.split('_'))}Model",
        __base__=settings,
        __doc__=settings.__doc__,
        architecture=(only, named),
        **common,
    )


_SETTINGS: Mapping[str, type[Strict]] = {
    "bert4rec": bert4rec.Settings,
    "dcn_v2": dcn_v2.Settings,
    "deepfm": deepfm.Settings,
    "din": din.Settings,
    "dlrm": dlrm.Settings,
    "logistic_regression": logistic_regression.Settings,
    "mult_vae": mult_vae.Settings,
    "neumf": neumf.Settings,
    "sasrec": sasrec.Settings,
    "two_tower": two_tower.Settings,
    "wide_and_deep": wide_and_deep.Settings,
}

# Architecture -> type of its section, for all architectures that have a settings file in this folder.
MODEL_SECTIONS: Mapping[str, type[Strict]] = {
    name: model_section(name, settings) for name, settings in _SETTINGS.items()
}

_members: list[Any] = list(MODEL_SECTIONS.values())
_union: Any = Annotated[reduce(or_, _members), Field(discriminator="architecture")]
MODELS: TypeAdapter[Any] = TypeAdapter(_union)
