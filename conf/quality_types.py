"""The typed configuration of the data checks: how much a day's log may differ from its train days."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from conf.raw_types import Names, Share, Strict

ShareLimit = Share | None
Limit = Annotated[float, Field(ge=0)] | None


class Quality(Strict):
    """Limits on the differences between a day's log and the log of its train days.

    `max_bad_share`, `misdated_share_warn` and `max_misdated_share` are limits for each day that a run reads,
    and `users_without_row_…` and `items_without_row_…` for the tables of users and items. All other limits
    are for figures that compare the day of the run date with its train days. If a figure is above its limit
    `…_warn`, the job logs the figure and marks it in the report. If a figure is above its limit `…_stop`,
    build_features ends with exit code 3 before it publishes features. The limits of users and items without
    a row are checked later: before the tables `users` and `items` are published.
    """

    max_bad_share: Share = Field(
        default=0.05, description="Largest share of a day's rows that may be quarantined."
    )
    misdated_share_warn: ShareLimit = Field(
        default=0.05,
        description="Warns if a larger share of a day's rows has an event_time outside of this day (UTC). "
        "Used only with `{date}` in `log.path` and `log.event_time`. Null: no limit.",
    )
    max_misdated_share: Share = Field(
        default=0.9,
        description="Largest share of a day's rows that may have an event_time outside of this day (UTC). "
        "Days of another time zone have at most 0.6, and times of a wrong unit 1. Used only with `{date}` in "
        "`log.path` and `log.event_time`.",
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
    users_without_row_warn: ShareLimit = Field(
        default=0.1,
        description="Warns if more than this share of the users of the log has no row in the table of "
        "users. All days of the run count. Null: no limit.",
    )
    users_without_row_stop: ShareLimit = Field(
        default=None,
        description="Stops if more than this share of the users of the log has no row in the table of "
        "users. All days of the run count. Null: no limit.",
    )
    items_without_row_warn: ShareLimit = Field(
        default=0.1,
        description="Warns if more than this share of the items of the log has no row in the table of "
        "items. All days of the run count. Null: no limit.",
    )
    items_without_row_stop: ShareLimit = Field(
        default=None,
        description="Stops if more than this share of the items of the log has no row in the table of "
        "items. All days of the run count. Null: no limit.",
    )
    exempt: Names = Field(
        default=[],
        description="Feature columns to which these limits do not apply, such as session ids, which are new "
        "every day.",
    )

    @model_validator(mode="after")
    def _warns_before_it_stops(self) -> Quality:
        if self.misdated_share_warn is not None and self.misdated_share_warn > self.max_misdated_share:
            raise ValueError(
                f"misdated_share_warn={self.misdated_share_warn} must not be above "
                f"max_misdated_share={self.max_misdated_share}"
            )
        for name in type(self).model_fields:
            check = name.removesuffix("_warn")
            warn, stop = getattr(self, name), getattr(self, f"{check}_stop", None)
            if name.endswith("_warn") and warn is not None and stop is not None and warn > stop:
                raise ValueError(f"{name}={warn} must not be above {check}_stop={stop}")
        return self
