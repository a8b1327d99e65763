"""The base of the settings of losses, and the type of the key `train.loss`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from conf.plugin_names import PluginNames
from conf.plugins import LOSS, description
from conf.raw_types import Strict

# The inputs from which a loss is computed; see LossSettings.
Compares = Literal["rows", "groups", "catalogue", "batch"]


class LossSettings(Strict):
    """Base of the settings of all losses. The docstring of a loss is its description in the reference.

    Attributes:
        compares: the inputs from which the loss is computed. `rows`: the logit of each row. `groups`: the
            logits of a positive row and of its negatives. `catalogue`: the user vector of a positive row, and
            the vectors of all items in the train rows of the row's day. `batch`: the user vector of a
            positive row, and the vectors of the items of all positive rows of the step.
        predicts_probabilities: whether a model that minimizes the loss predicts probabilities.
    """

    compares: ClassVar[Compares] = "rows"
    predicts_probabilities: ClassVar[bool] = False

    @property
    def compares_vectors(self) -> bool:
        """Returns whether the loss compares user vectors with item vectors, instead of logits of rows."""
        return self.compares in ("catalogue", "batch")


def loss_name(loss: str | dict[str, dict[str, Any]]) -> str:
    """Returns the name of the loss that the key `train.loss` selects."""
    return loss if isinstance(loss, str) else next(iter(loss))


def loss_settings(loss: str | dict[str, dict[str, Any]]) -> LossSettings:
    """Returns the settings of the loss that the key `train.loss` selects.

    Raises:
        ConfigError: the module of a package cannot be imported, or has no class `Settings`.
        ValidationError: a key is not one of the settings, or a value breaks its rule.
    """
    kind: type[LossSettings] = LOSS.get(loss_name(loss)).settings(LossSettings)
    return kind.model_validate({} if isinstance(loss, str) else loss[loss_name(loss)])


def _known_loss(value: Any) -> Any:
    """Checks the name and the settings of a loss. Returns only the name if there are no settings."""
    if isinstance(value, dict) and len(value) == 1:
        name, settings = next(iter(value.items()))
    else:
        name, settings = value, {}
    if not isinstance(name, str) or not isinstance(settings, dict | None):
        raise ValueError(
            "write the name of a loss, such as bce, or its name with its settings, such as "
            "{name: {key: value}}"
        )
    if LOSS.find(name) is None:
        raise ValueError(f"there is no such loss; known: {LOSS.names()}")
    loss_settings({name: settings or {}})
    return {name: settings} if settings else name


class _Names(PluginNames):
    """Adds losses with settings to the JSON schema of the key, as a mapping from the name to the settings."""

    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of the key."""
        kinds = built_in_losses().items()
        sections = {name: kind.model_json_schema() for name, kind in kinds if kind.model_fields}
        if not sections:
            return super().schema()
        section = {"type": "object", "additionalProperties": False, "properties": sections}
        return {"anyOf": [super().schema(), {**section, "minProperties": 1, "maxProperties": 1}]}


Loss = Annotated[str | dict[str, dict[str, Any]], BeforeValidator(_known_loss), _Names(LOSS)]

_NEEDS: Mapping[Compares, str] = {
    "rows": "",
    "groups": " It needs `negatives`.",
    "catalogue": " It needs a model with user vectors and item vectors.",
    "batch": " It needs a model with user vectors and item vectors.",
}


def built_in_losses() -> dict[str, type[LossSettings]]:
    """Maps the name of each loss of the checkout to the type of its settings."""
    return {one.name: one.settings(LossSettings) for one in LOSS.plugins()}


def _describe(schema: dict[str, Any]) -> None:
    """Adds the description of each loss of the checkout to the description of the key."""
    for name, kind in built_in_losses().items():
        schema["description"] += f" `{name}`: {description(kind)}{_NEEDS[kind.compares]}"


def loss_field() -> Any:
    """Returns the field `train.loss`. When a schema is created, its description lists the losses."""
    return Field(
        default="bce",
        description="Loss of a step. A loss with settings is written as `{name: {key: value}}`. Only `bce` "
        "predicts probabilities; the other losses train models that order items. Losses over item vectors "
        "leave out all rows with label 0, and do not use `negatives`; the architectures two_tower, sasrec, "
        "hstu, bert4rec and mult_vae have such vectors. Packages may add losses (docs/extending.md).",
        json_schema_extra=_describe,
    )
