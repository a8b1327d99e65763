"""The typed configuration of the data checks: how much a day's log may differ from its train days."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from conf.raw_types import Names, Share, Strict

ShareLimit = Share | None
Limit = Annotated[float, Field(ge=0)] | None


class Quality(Strict):
    """How much a day's log may differ from its train days.

    All limits except `max_bad_share` compare the day of the run date with its train days. If a figure is
    above its limit `_warn`, it is logged and marked in the report. If it is above its limit `_stop`,
    build_features ends with exit code 3 before it publishes features.
    """

    max_bad_share: Share = Field(
        default=0.05, description="Largest share of a day's rows that may be quarantined."
    )
    null_rate_change_warn: ShareLimit = Field(
        default=0.1, description="Difference of a column's share of nulls that warns. Null: no limit."
    )
    null_rate_change_stop: ShareLimit = Field(
        default=None, description="Difference of a column's share of nulls that stops. Null: no limit."
    )
    new_value_rate_warn: ShareLimit = Field(
        default=0.5,
        description="Share of a categorical column's values that the train days do not have and that warns. "
        "Null: no limit.",
    )
    new_value_rate_stop: ShareLimit = Field(
        default=None,
        description="Share of a categorical column's values that the train days do not have and that stops. "
        "Null: no limit.",
    )
    psi_warn: Limit = Field(
        default=0.25,
        description="Population stability index of a column that warns, if it is more than chance gives a "
        "day of that size. Null: no limit.",
    )
    psi_stop: Limit = Field(
        default=None,
        description="Population stability index of a column that stops, if it is more than chance gives a "
        "day of that size. Null: no limit.",
    )
    click_rate_change_warn: Limit = Field(
        default=0.5, description="Relative change of the share of clicks that warns. Null: no limit."
    )
    click_rate_change_stop: Limit = Field(
        default=None, description="Relative change of the share of clicks that stops. Null: no limit."
    )
    row_shortfall_warn: ShareLimit = Field(
        default=0.5,
        description="Share of the rows of the median train day that are missing and that warns. Null: no "
        "limit.",
    )
    row_shortfall_stop: ShareLimit = Field(
        default=None,
        description="Share of the rows of the median train day that are missing and that stops. Null: no "
        "limit.",
    )
    row_excess_warn: Limit = Field(
        default=1.0,
        description="Rows beyond those of the median train day, as a share of them, that warn. Null: no "
        "limit.",
    )
    row_excess_stop: Limit = Field(
        default=None,
        description="Rows beyond those of the median train day, as a share of them, that stop. Null: no "
        "limit.",
    )
    exempt: Names = Field(default=[], description="Feature columns without limits, such as ids of sessions.")

    @model_validator(mode="after")
    def _warns_before_it_stops(self) -> Quality:
        for name in type(self).model_fields:
            check = name.removesuffix("_warn")
            warn, stop = getattr(self, name), getattr(self, f"{check}_stop", None)
            if name.endswith("_warn") and warn is not None and stop is not None and warn > stop:
                raise ValueError(f"{name}={warn} must not be above {check}_stop={stop}")
        return self
