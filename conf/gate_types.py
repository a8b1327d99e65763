"""The typed configuration of the gate: when a challenger replaces the champion."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from conf.raw_types import PositiveInt, Seed, Strict

Limit = Annotated[float, Field(ge=0)] | None
Positive = Annotated[float, Field(gt=0)]


class Drift(Strict):
    """Limits on how much a challenger's data and scores may differ from what is expected.

    If a figure is above its limit `_warn`, it is logged and marked in the report. If it is above its limit
    `_hold`, the champion remains. Columns in `quality.exempt` are ignored.
    """

    score_psi_warn: Limit = Field(
        default=0.25,
        description="Warns above this population stability index of the challenger's probabilities against "
        "the champion's, on the same test rows. Null: no limit.",
    )
    score_psi_hold: Limit = Field(
        default=None, description="The champion remains above this value of the same index. Null: no limit."
    )
    feature_psi_warn: Limit = Field(
        default=0.25,
        description="Warns above this population stability index of a raw column, test day against train "
        "days. The column with the largest index counts; indexes that can be due to chance are ignored. "
        "Null: no limit.",
    )
    feature_psi_hold: Limit = Field(
        default=None, description="The champion remains above this value of the same index. Null: no limit."
    )
    click_rate_change_warn: Limit = Field(
        default=0.5,
        description="Warns above this relative change of the share of clicks, test day against train days. "
        "Null: no limit.",
    )
    click_rate_change_hold: Limit = Field(
        default=None, description="The champion remains above this value of the same change. Null: no limit."
    )
    oov_share_warn: Limit = Field(
        default=0.5,
        description="Warns above this share of a feature's ids on the test day that are missing in the "
        "challenger's vocabulary. The feature with the largest share counts. Null: no limit.",
    )
    oov_share_hold: Limit = Field(
        default=None, description="The champion remains above this value of the same share. Null: no limit."
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
    """When a challenger replaces the champion; docs/retraining.md explains how to choose these values.

    The challenger must not be worse by more than `margin`: the confidence interval of its AUC minus the
    champion's AUC, on the same test rows, must begin above -`margin`. The interval is computed by resampling
    users, or rows if the log has no keys. The first model is always promoted.
    """

    margin: Annotated[float, Field(ge=0)] = Field(
        default=0.002, description="Largest loss of AUC that is accepted."
    )
    log_loss_margin: Limit = Field(
        default=None,
        description="Largest increase of the log loss that is accepted. Null: the log loss is ignored.",
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Confidence of the interval."
    )
    replicates: Annotated[int, Field(ge=100, lt=2**31)] = Field(
        default=1000, description="Number of resamples."
    )
    seed: Seed = Field(default=0, description="Seed of the resamples.")
    min_rows: PositiveInt = Field(
        default=1000, description="Smallest number of rows in the test split. With fewer, the champion stays."
    )
    min_users: PositiveInt = Field(
        default=50, description="Smallest number of users in the test split. With fewer, the champion stays."
    )
    calibration_low: Positive = Field(
        default=0.8,
        description="Lower limit of predicted clicks divided by observed clicks. Outside of the two limits, "
        "a challenger is promoted only if the champion's value is further away from 1.",
    )
    calibration_high: Positive = Field(
        default=1.25, description="Upper limit of predicted clicks divided by observed clicks."
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
