"""The typed configuration of limits: the checks of a day's data, and the gate that a challenger passes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from conf.raw_types import Names, PositiveInt, Seed, Share, Strict

ShareLimit = Share | None
Limit = Annotated[float, Field(ge=0)] | None


class Quality(Strict):
    """Limits on the quality of the raw log, and of the tables of users and items.

    `max_bad_share`, `misdated_share_warn` and `max_misdated_share` are limits for each day that a run reads.
    `users_without_row_…` and `items_without_row_…` are limits for the tables of users and items. All other
    limits are for figures that compare the run date with its train days. If a figure is above its limit
    `…_warn`, the job logs the figure and marks it in the report. If a figure is above its limit `…_stop`,
    build_features ends with exit code 3 before it publishes features. The limits of users and items without
    a row are checked later: before the tables `users` and `items` are published.
    """

    max_bad_share: Share = Field(
        default=0.05, description="Largest share of a day's rows that may be quarantined."
    )
    misdated_share_warn: ShareLimit = Field(
        default=0.05,
        description="Warns if a larger share of a day's rows has an event_time outside of this day in "
        "`log.time_zone`. Used only with `{date}` in `log.path` and `log.event_time`. Null: no limit.",
    )
    max_misdated_share: Share = Field(
        default=0.9,
        description="Largest share of a day's rows that may have an event_time outside of this day in "
        "`log.time_zone`. If the files contain the days of another time zone, the share is at most 0.6. If "
        "the unit of the times is wrong, it is 1. Used only with `{date}` in `log.path` and "
        "`log.event_time`.",
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
        description="Warns if the population stability index of a column (run date compared with the train "
        "days) is above this value. An index that can be due to chance for the number of rows is ignored. "
        "Null: no limit.",
    )
    psi_stop: Limit = Field(
        default=None,
        description="Stops if the population stability index of a column (run date compared with the train "
        "days) is above this value. An index that can be due to chance for the number of rows is ignored. "
        "Null: no limit.",
    )
    click_rate_change_warn: Limit = Field(
        default=0.5,
        description="Warns if the relative change of the click rate (run date compared with the train "
        "days) is above this value. Not checked if `negatives` adds rows, or if every row is a click. "
        "Null: no limit.",
    )
    click_rate_change_stop: Limit = Field(
        default=None,
        description="Stops if the relative change of the click rate (run date compared with the train "
        "days) is above this value. Null: no limit.",
    )
    row_shortfall_warn: ShareLimit = Field(
        default=0.5,
        description="Warns if the number of rows is below the median of the train days by more than this "
        "share of the median. With 0.5, it warns below half of the median. Null: no limit.",
    )
    row_shortfall_stop: ShareLimit = Field(
        default=None,
        description="Stops if the number of rows is below the median of the train days by more than this "
        "share of the median. Null: no limit.",
    )
    row_excess_warn: Limit = Field(
        default=1.0,
        description="Warns if the number of rows is above the median of the train days by more than this "
        "share of the median. With 1.0, it warns above twice the median. Null: no limit.",
    )
    row_excess_stop: Limit = Field(
        default=None,
        description="Stops if the number of rows is above the median of the train days by more than this "
        "share of the median. Null: no limit.",
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


# The typed configuration of the gate, which decides whether a challenger replaces the champion.

Positive = Annotated[float, Field(gt=0)]


class Drift(Strict):
    """Limits on how much the test day's data and the challenger's scores may differ from expected values.

    Each figure has two limits. If a figure is above its limit `…_warn`, the gate logs a warning, and the
    report marks the figure. If a figure is above its limit `…_hold`, the champion remains. Columns in
    `quality.exempt` are ignored.
    """

    score_psi_warn: Limit = Field(
        default=0.25,
        description="Warns if the population stability index (PSI) between the challenger's and the "
        "champion's scores of the same test rows is above this value. Null: no limit.",
    )
    score_psi_hold: Limit = Field(
        default=None,
        description="The champion remains if the PSI of the scores is above this value. Null: no limit.",
    )
    feature_psi_warn: Limit = Field(
        default=0.25,
        description="Warns if the PSI of a raw column (test day compared with train days) is above this "
        "value. Only the column with the largest PSI counts; a PSI that can be due to chance is ignored. "
        "Null: no limit.",
    )
    feature_psi_hold: Limit = Field(
        default=None,
        description="The champion remains if the largest PSI of a raw column is above this value. Null: no "
        "limit.",
    )
    click_rate_change_warn: Limit = Field(
        default=0.5,
        description="Warns if the relative change of the click rate (test day compared with train days) is "
        "above this value. Not checked if `negatives` adds rows, or if every row is a click. Null: no "
        "limit.",
    )
    click_rate_change_hold: Limit = Field(
        default=None,
        description="The champion remains if the relative change of the click rate is above this value. "
        "Null: no limit.",
    )
    oov_share_warn: Limit = Field(
        default=0.5,
        description="Warns if more than this share of a feature's values on the test day are missing in "
        "the challenger's vocabulary. Only the feature with the largest share counts. Null: no limit.",
    )
    oov_share_hold: Limit = Field(
        default=None,
        description="The champion remains if the largest share of missing values is above this value. Null: "
        "no limit.",
    )

    @model_validator(mode="after")
    def _warns_before_it_holds(self) -> Drift:
        for name in type(self).model_fields:
            check = name.removesuffix("_warn")
            warn, hold = getattr(self, name), getattr(self, f"{check}_hold", None)
            if name.endswith("_warn") and warn is not None and hold is not None and warn > hold:
                raise ValueError(f"{name}={warn} must not be above {check}_hold={hold}")
        return self


class Gate(Strict):
    """Settings that decide when a challenger replaces the champion (docs/retraining.md: how to choose them).

    The challenger must not be worse than the champion by more than `margin`. The gate computes a confidence
    interval of the difference between the two AUCs (challenger minus champion) on the same test rows. This
    interval must begin above -`margin`. The interval is computed by resampling users, or by resampling rows
    if the log has no keys. If lists can be made, the same rule applies to NDCG@k of both models' lists
    (`lists_margin`). The first model is always promoted.
    """

    margin: Annotated[float, Field(ge=0)] = Field(
        default=0.002, description="Largest decrease of the AUC that is accepted."
    )
    log_loss_margin: Limit = Field(
        default=None,
        description="Largest increase of the log loss that is accepted. Null: the log loss is ignored. "
        "Only models trained with `train.loss: bce` have a log loss.",
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Confidence of the interval of the difference."
    )
    replicates: Annotated[int, Field(ge=100, lt=2**31)] = Field(
        default=1000, description="Number of resamples."
    )
    seed: Seed = Field(default=0, description="Seed of the resamples.")
    min_rows: PositiveInt = Field(
        default=1000,
        description="Smallest number of rows in the test split. With fewer rows, the champion remains.",
    )
    min_users: PositiveInt = Field(
        default=50,
        description="Smallest number of users in the test split. With fewer users, the champion remains.",
    )
    calibration_low: Positive = Field(
        default=0.8,
        description="Lower limit of the challenger's ratio of predicted clicks to observed clicks. If this "
        "ratio is below `calibration_low` or above `calibration_high`, the challenger is promoted only if "
        "the champion's ratio is further away from 1. Only checked if the scores are click probabilities: "
        "with `train.loss: bce`, and without drawn negatives.",
    )
    calibration_high: Positive = Field(
        default=1.25, description="Upper limit of the challenger's ratio of predicted to observed clicks."
    )
    lists_margin: Limit = Field(
        default=0.02,
        description="Largest decrease of NDCG@k of the users' lists that is accepted (k is `score.k`). Null: "
        "the lists are measured, but they do not decide.",
    )
    lists_users: PositiveInt | None = Field(
        default=1000,
        description="Largest number of users whose lists are measured. A hash of the user key chooses them, "
        "so both models and all reruns use the same users. Null: lists are not measured.",
    )
    drift: Drift = Field(default=Drift(), description="Limits on the drift of data and scores.")

    @model_validator(mode="after")
    def _a_band_around_one(self) -> Gate:
        if not self.calibration_low <= 1 <= self.calibration_high:
            raise ValueError(
                f"1 must be between calibration_low={self.calibration_low} and "
                f"calibration_high={self.calibration_high}"
            )
        return self
