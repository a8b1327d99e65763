"""Boost: changes the ranking scores of items with certain attribute values, but not the published scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, assert_never

import pyarrow as pa
from pydantic import Field, model_validator

from conf.list_types import AttributeRule
from scoring.rules.item_rule import ItemRule, RuleInputs

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("nightrank")

_MOST_LOG_ODDS = 50  # this amount moves any float32 probability past any other


class Settings(AttributeRule):
    """A rule that moves items up or down by the value of an attribute.

    The published scores are still the probabilities of the model.
    """

    place: ClassVar[Literal["first", "middle", "last"]] = "first"
    keeps_draws: ClassVar[bool] = True
    by: Literal["factor", "log_odds"] = Field(
        default="factor",
        description="`factor`: for the ranking, the probability is multiplied by the number in `values`. "
        "`log_odds`: the number in `values` is added to the log-odds of the probability.",
    )
    values: Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)] = Field(
        description="Maps each value of the attribute to its factor or log-odds. Items with other values are "
        "not moved."
    )

    @model_validator(mode="after")
    def _amounts_are_usable(self) -> Settings:
        if self.by == "factor":
            wrong = {name: value for name, value in self.values.items() if value <= 0}
            if wrong:
                raise ValueError(
                    f"factors must be above 0, but those of {sorted(wrong)} are not; to move items down, "
                    "set a factor between 0 and 1"
                )
        elif self.by == "log_odds":
            wrong = {name: value for name, value in self.values.items() if abs(value) > _MOST_LOG_ODDS}
            if wrong:
                raise ValueError(
                    f"log-odds must be from -{_MOST_LOG_ODDS} to {_MOST_LOG_ODDS}, but those of "
                    f"{sorted(wrong)} are not"
                )
        else:
            assert_never(self.by)
        return self


@dataclass(frozen=True)
class Boosted(ItemRule):
    """The boost of each item: a factor, or a number that is added to the log-odds.

    Attributes:
        amounts: (N,) float64: the boost of each item index. Items without a boost have factor 1, or log-odds
            0.
        by: whether `amounts` are factors or log-odds.
        reason: (N,) int64: the index of each item's reason in `texts`; -1 for an item without a boost.
        texts: the reasons, one for each attribute value with a boost.
    """

    amounts: Tensor
    by: Literal["factor", "log_odds"]
    reason: Tensor
    texts: Sequence[str]

    def ranking_scores(self, scores: Tensor, items: Tensor) -> Tensor:
        """Returns the ranking scores of items, float32, in the shape of `scores`.

        With a factor f, the ranking score of an item with probability p is p × f. With log-odds x, the amount
        x is added to the log-odds of p, so the ranking score is p·eˣ / (1 − p + p·eˣ). If x is 0, the ranking
        score is p. The computation uses float64.

        Args:
            scores: probabilities.
            items: item indices, in the shape of `scores`.
        """
        import torch

        amounts, probability = self.amounts[items], scores.double()
        if self.by == "factor":
            return (probability * amounts).float()
        if self.by == "log_odds":
            odds = probability * amounts.exp()
            return torch.where(amounts == 0, scores, (odds / (1 - probability + odds)).float())
        assert_never(self.by)

    def reasons(self) -> tuple[Tensor, Sequence[str]]:
        """Returns the index of each item's reason (-1: none), and the reasons `boost:<value>`."""
        return self.reason, self.texts


def load(settings: Settings, inputs: RuleInputs) -> Boosted:
    """Returns the rule, with the amount by which each item is boosted."""
    import torch

    attribute = inputs.attributes[settings.attribute]
    neutral = 1.0 if settings.by == "factor" else 0.0
    amounts, reasons, texts = list[float](), list[int](), list[str]()
    for value in attribute.values:
        amount = settings.values.get(value, neutral)
        amounts.append(amount)
        reasons.append(-1 if amount == neutral else len(texts))
        if amount != neutral:
            texts.append(f"boost:{value}")
    # An item without a value has the code -1, which selects the last entry (no boost).
    codes = torch.from_numpy(attribute.codes)
    by_value = torch.tensor([*amounts, neutral], dtype=torch.float64)
    return Boosted(
        by_value[codes].to(inputs.device), settings.by, torch.tensor([*reasons, -1])[codes], tuple(texts)
    )


def check(settings: Settings, attributes: Mapping[str, pa.Table]) -> None:
    """Logs a warning if the configuration boosts attribute values that no item has."""
    known = set(attributes[settings.attribute].column("value").to_pylist())
    unknown = [value for value in sorted(settings.values) if value not in known]
    if unknown:
        log.warning("score.rules.boost: no item has %s=%s", settings.attribute, unknown)
