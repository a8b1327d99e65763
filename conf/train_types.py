"""The typed configuration of models and their training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from conf.raw_types import PositiveInt, Share, Strict


class MultiHot(Strict):
    """How a feature that is a list of ids enters a model: as the `pooling` of its ids' vectors, zero for an empty list.

    The first `max_length` ids of a list count, in training and in scoring alike; `lengths` gives single features a
    length of their own. A batch holds so many ids of every row, so a length far above what occurs costs memory.
    """

    pooling: Literal["sum", "mean"] = "mean"
    max_length: PositiveInt = 32
    lengths: dict[str, PositiveInt] = {}


class ModelConfig(Strict):
    """An architecture and its settings.

    `architecture` names a module of training/models. All other keys are that architecture's own: its class `Settings`
    has them with their rules, and `training.models.complete` holds them against it before anything is trained.
    """

    model_config = ConfigDict(extra="allow")

    architecture: str
    multi_hot: MultiHot = MultiHot()

    @property
    def settings(self) -> dict[str, Any]:
        """The architecture's own keys, as they were given."""
        return dict(self.model_extra or {})


class Retrain(Strict):
    """How a retraining starts.

    `warm`: from the champion, over its vocabularies extended by new values; where that does not fit, the job stops and says
    why. `fresh`: from random weights, on vocabularies fitted to the window alone. `auto`: warm where it fits, otherwise
    fresh; and fresh where the last fresh training is `fresh_every_days` or more days back (null: never for that reason), so
    that values and habits that have left the window leave the model too.
    """

    start: Literal["auto", "warm", "fresh"] = "auto"
    fresh_every_days: PositiveInt | None = None

    @model_validator(mode="after")
    def _only_auto_has_a_period(self) -> Retrain:
        if self.start != "auto" and self.fresh_every_days is not None:
            raise ValueError(f"fresh_every_days={self.fresh_every_days} needs start=auto, it is {self.start}")
        return self


class Train(Strict):
    """The training loop. Batch sizes and rates are global: they do not depend on `num_ranks`.

    Both learning rates rise linearly over the first `warmup_share` of all steps, stay until `decay_start_share` of them,
    then decay with power 2 to zero. `learning_rate` is Adam's, for the dense layers; `embedding_learning_rate` is
    row-wise Adagrad's. `baselines` names architectures that are trained and measured beside the model.
    """

    num_ranks: PositiveInt = 2
    num_shards: PositiveInt = 16
    global_batch_size: PositiveInt = 4096
    epochs: PositiveInt = 1
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    embedding_learning_rate: Annotated[float, Field(gt=0)] = 0.15
    warmup_share: Share = 0.05
    decay_start_share: Share = 0.6
    checkpoint_every_steps: PositiveInt = 500
    log_every_steps: PositiveInt = 20
    seed: int = 0
    baselines: list[str] = []
    retrain: Retrain = Retrain()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    start_timeout_s: PositiveInt = 180

    @model_validator(mode="after")
    def _divisible(self) -> Train:
        if self.num_shards % self.num_ranks:
            raise ValueError(f"num_shards={self.num_shards} must be a multiple of num_ranks={self.num_ranks}")
        if self.global_batch_size % self.num_shards:
            raise ValueError(
                f"global_batch_size={self.global_batch_size} must be a multiple of num_shards={self.num_shards}"
            )
        return self


Limit = Annotated[float, Field(ge=0)] | None
Positive = Annotated[float, Field(gt=0)]


class Drift(Strict):
    """What a challenger's data and scores may be like. Above `_warn` a figure is logged and marked in the report, above
    `_hold` the champion stays; null never does.

    `score_psi`: population stability index of the challenger's probabilities against the champion's on the same test rows.
    `feature_psi`: that of a raw column on the test day against the train days, where it is more than chance; the worst one.
    `click_rate_change`: relative change of the share of clicks, test day against train days. `oov_share`: share of the test
    day's ids of a feature that are unknown to the challenger's vocabulary; the worst one. Columns named in `quality.exempt`
    count in neither.
    """

    score_psi_warn: Limit = 0.25
    score_psi_hold: Limit = None
    feature_psi_warn: Limit = 0.25
    feature_psi_hold: Limit = None
    click_rate_change_warn: Limit = 0.5
    click_rate_change_hold: Limit = None
    oov_share_warn: Limit = 0.5
    oov_share_hold: Limit = None

    @model_validator(mode="after")
    def _warns_before_it_holds(self) -> Drift:
        for name in type(self).model_fields:
            check = name.removesuffix("_warn")
            warn, hold = getattr(self, name), getattr(self, f"{check}_hold", None)
            if name.endswith("_warn") and warn is not None and hold is not None and warn > hold:
                raise ValueError(f"{name}={warn} must not be above {check}_hold={hold}")
        return self


class Gate(Strict):
    """When a challenger takes the champion's place; docs/retraining.md tells how to choose these.

    It does so where it is not worse by more than `margin`: the interval of its AUC minus the champion's, on the same test
    rows, must begin above -`margin`. The interval holds the true difference with `confidence`; it comes from `replicates`
    resamples of the users (of rows, for a log without keys), drawn from `seed`. `log_loss_margin`: what its log loss may be
    higher by, in the same sense; null lets the AUC decide alone. `min_rows`, `min_users`: fewer in the test split decide
    nothing, and the champion stays. `calibration_low`, `calibration_high`: band for predicted over observed clicks, outside
    of which a challenger serves only if the champion is further off. A first model is always promoted.
    """

    margin: Annotated[float, Field(ge=0)] = 0.002
    log_loss_margin: Limit = None
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    replicates: Annotated[int, Field(ge=100)] = 1000
    seed: Annotated[int, Field(ge=0)] = 0
    min_rows: PositiveInt = 1000
    min_users: PositiveInt = 50
    calibration_low: Positive = 0.8
    calibration_high: Positive = 1.25
    drift: Drift = Drift()

    @model_validator(mode="after")
    def _a_band_around_one(self) -> Gate:
        if not self.calibration_low <= 1 <= self.calibration_high:
            raise ValueError(
                f"calibration_low={self.calibration_low} and calibration_high={self.calibration_high} must hold 1 between them"
            )
        return self
