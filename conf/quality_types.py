"""The typed configuration of the data checks: how much a day's log may differ from its train days."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from conf.raw_types import Names, Share, Strict

ShareLimit = Share | None
Limit = Annotated[float, Field(ge=0)] | None


class Quality(Strict):
    """Limits on the differences between a day's log and the log of its train days.

    All limits except `max_bad_share` are for figures that compare the day of the run date with its train
    days. Each of these figures has two limits. If a figure is above its limit `…_warn`, the job logs the
    figure and marks it in the report. If a figure is above its limit `…_stop`, build_features ends with exit
    code 3 before it publishes features.
    """

    max_bad_share: Share = Field(
        default=0.05, description="Largest share of a day's rows that may be quarantined."
    )
    null_rate_change_warn: ShareLimit = Field(
        default=0.1,
        description="Warns if a column's share of nulls differs from that of the train days by more than "
        "this. Null: no limit.",
    )
    null_rate_change_stop: ShareLimit = Field(
        default=None,
        description="Stops if a column's share of nulls differs from that of the train days by more than "
        "this. Null: no limit.",
    )
    new_value_rate_warn: ShareLimit = Field(
        default=0.5,
        description="Warns if more than this share of a categorical column's values does not occur in the "
        "train days. Null: no limit.",
    )
    new_value_rate_stop: ShareLimit = Field(
        default=None,
        description="Stops if more than this share of a categorical column's values does not occur in the "
        "train days. Null: no limit.",
    )
    psi_warn: Limit = Field(
        default=0.25,
        description="Warns above this population stability index of a column, the day against the train "
        "days. An index that can be due to chance for the number of rows is ignored. Null: no limit.",
    )
    psi_stop: Limit = Field(
        default=None,
        description="Stops above this population stability index of a column, the day against the train "
        "days. An index that can be due to chance for the number of rows is ignored. Null: no limit.",
    )
    click_rate_change_warn: Limit = Field(
        default=0.5,
        description="Warns above this relative change of the click rate, the day against the train days. "
        "Not checked if `negatives` adds rows, or if every row is a click. Null: no limit.",
    )
    click_rate_change_stop: Limit = Field(
        default=None,
        description="Stops above this relative change of the click rate, the day against the train days. "
        "Null: no limit.",
    )
    row_shortfall_warn: ShareLimit = Field(
        default=0.5,
        description="Warns if the day has fewer rows than the median train day, by more than this share. "
        "Example: 0.5 warns below half of the rows. Null: no limit.",
    )
    row_shortfall_stop: ShareLimit = Field(
        default=None,
        description="Stops if the day has fewer rows than the median train day, by more than this share. "
        "Null: no limit.",
    )
    row_excess_warn: Limit = Field(
        default=1.0,
        description="Warns if the day has more rows than the median train day, by more than this share. "
        "Example: 1.0 warns above twice the rows. Null: no limit.",
    )
    row_excess_stop: Limit = Field(
        default=None,
        description="Stops if the day has more rows than the median train day, by more than this share. "
        "Null: no limit.",
    )
    exempt: Names = Field(
        default=[],
        description="Feature columns to which these limits do not apply, such as session ids, which are new "
        "every day.",
    )

    @model_validator(mode="after")
    def _warns_before_it_stops(self) -> Quality:
        for name in type(self).model_fields:
            check = name.removesuffix("_warn")
            warn, stop = getattr(self, name), getattr(self, f"{check}_stop", None)
            if name.endswith("_warn") and warn is not None and stop is not None and warn > stop:
                raise ValueError(f"{name}={warn} must not be above {check}_stop={stop}")
        return self
