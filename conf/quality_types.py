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
        default=0.1, description="Warns above this difference of a column's share of nulls. Null: no limit."
    )
    null_rate_change_stop: ShareLimit = Field(
        default=None, description="Stops above this difference of a column's share of nulls. Null: no limit."
    )
    new_value_rate_warn: ShareLimit = Field(
        default=0.5,
        description="Warns above this share of a categorical column's values that are missing in the train "
        "days. Null: no limit.",
    )
    new_value_rate_stop: ShareLimit = Field(
        default=None,
        description="Stops above this share of a categorical column's values that are missing in the train "
        "days. Null: no limit.",
    )
    psi_warn: Limit = Field(
        default=0.25,
        description="Warns above this population stability index of a column. An index that can be due to "
        "chance on a day of this size is ignored. Null: no limit.",
    )
    psi_stop: Limit = Field(
        default=None,
        description="Stops above this population stability index of a column. An index that can be due to "
        "chance on a day of this size is ignored. Null: no limit.",
    )
    click_rate_change_warn: Limit = Field(
        default=0.5, description="Warns above this relative change of the share of clicks. Null: no limit."
    )
    click_rate_change_stop: Limit = Field(
        default=None, description="Stops above this relative change of the share of clicks. Null: no limit."
    )
    row_shortfall_warn: ShareLimit = Field(
        default=0.5,
        description="Warns if more than this share of the rows of the median train day is missing. Null: no "
        "limit.",
    )
    row_shortfall_stop: ShareLimit = Field(
        default=None,
        description="Stops if more than this share of the rows of the median train day is missing. Null: no "
        "limit.",
    )
    row_excess_warn: Limit = Field(
        default=1.0,
        description="Warns above this number of additional rows, divided by the rows of the median train "
        "day. Null: no limit.",
    )
    row_excess_stop: Limit = Field(
        default=None,
        description="Stops above this number of additional rows, divided by the rows of the median train "
        "day. Null: no limit.",
    )
    exempt: Names = Field(default=[], description="Feature columns without limits, such as session ids.")

    @model_validator(mode="after")
    def _warns_before_it_stops(self) -> Quality:
        for name in type(self).model_fields:
            check = name.removesuffix("_warn")
            warn, stop = getattr(self, name), getattr(self, f"{check}_stop", None)
            if name.endswith("_warn") and warn is not None and stop is not None and warn > stop:
                raise ValueError(f"{name}={warn} must not be above {check}_stop={stop}")
        return self
