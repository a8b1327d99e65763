"""The typed configuration of models and their training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from conf.raw_types import Days, PositiveInt, PositiveLong, Seed, Share, Strict

EmbeddingStorage = Literal["fp32", "bf16", "fp16"]
Kernels = Literal["auto", "triton", "torch"]


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

    `embedding_storage`: how the numbers of embedding tables are kept and saved. Those of 16 bits halve a table, on disk too;
    updates are then rounded stochastically, and everything computed with them stays as it is. The weights of linear parts, one
    number an id, are fp32 whatever it says.
    """

    model_config = ConfigDict(extra="allow")

    architecture: str
    multi_hot: MultiHot = MultiHot()
    embedding_storage: EmbeddingStorage = "fp32"

    @property
    def settings(self) -> dict[str, Any]:
        """The architecture's own keys, as they were given."""
        return dict(self.model_extra or {})


class StopAt(Strict):
    """When a training ends before its last step, decided on the validation split each `train.evaluate_every_steps`.

    `value`: the target of `metric`; it ends when the metric is as good as that. `patience`: it ends after so many
    evaluations in a row none of which was better than the best before them. The weights of the last step are kept.
    """

    metric: Literal["auc", "log_loss", "normalized_entropy"] = "auc"
    value: float | None = None
    patience: PositiveInt | None = None

    @model_validator(mode="after")
    def _asks_for_something(self) -> StopAt:
        if self.value is None and self.patience is None:
            raise ValueError("stop_at needs a value to reach, a patience, or both")
        return self


class Profile(Strict):
    """Steps that torch.profiler records: `steps` of them, the first of which is `first_step` (counted from 1).

    Rank 0 writes its trace into `<checkpoints of the model>.profile`; with `every_rank` all ranks do.
    """

    first_step: PositiveInt = 10
    steps: PositiveInt = 5
    every_rank: bool = False


class Elastic(Strict):
    """A training that survives the loss of ranks: those that are left go on from the last checkpoint.

    Ranks that Spark starts anew, or for which it has room later, join at a checkpoint, up to `train.num_ranks`. With fewer
    than `min_ranks` it waits `train.start_timeout_s` for more, then ends.
    """

    min_ranks: PositiveInt = 1


class Embeddings(Strict):
    """How embedding tables are trained, and which rank holds which rows.

    `optimizer`: row-wise Adagrad, SGD or lazy Adam, at the rate `embedding_learning_rate`. Weights trained by FTRL keep it.

    `placement`: `replicated` holds every table on every rank, `table_wise` each feature's on one rank, `row_wise` spreads the
    rows of each over all ranks. `auto` decides for each feature: replicated up to `replicated_max_bytes`; by rows where it is
    larger than `row_wise_share` of the bytes a rank holds on average, or where a rank would otherwise hold more than
    `rank_max_bytes`; on one rank elsewhere. Bytes are those of a table and its optimiser's state. With `rank_max_bytes` a
    table that does not fit is an error; null takes what there is. One rank holds everything. What is trained does not
    depend on it, but for rounding.
    """

    optimizer: Literal["row_wise_adagrad", "sgd", "lazy_adam"] = "row_wise_adagrad"
    placement: Literal["auto", "replicated", "table_wise", "row_wise"] = "auto"
    replicated_max_bytes: Annotated[int, Field(ge=0, lt=2**63)] = 4 * 2**20
    row_wise_share: Annotated[float, Field(gt=0)] = 0.5
    rank_max_bytes: PositiveLong | None = None


class Reading(Strict):
    """How a rank reads feature tables.

    Rows are shuffled and cut into batches in pools of `pool_rows` rows, summed over all ranks (at least 4 batches). Row groups
    are decoded up to `read_ahead_mib` ahead of the pool that needs them, and one beyond. Files of a lake that is no local path
    are copied ahead, a row group at a time, to a folder of each rank's own in `nightrank-<user id>` below `staging_folder` (by
    default that of temporary files) and deleted once read: `staging_mib` may lie there, and beyond it the one being read and the one being copied.
    """

    pool_rows: PositiveInt = 131_072
    read_ahead_mib: PositiveInt = 1024
    staging_folder: str | None = None
    staging_mib: PositiveInt = 16_384


class Retrain(Strict):
    """How a retraining starts.

    `warm`: from the champion, over its vocabularies extended by new values; where that does not fit, the job stops and says
    why. `fresh`: from random weights, on vocabularies fitted to the window alone. `auto`: warm where it fits, otherwise
    fresh; and fresh where the last fresh training is `fresh_every_days` or more days back (null: never for that reason), so
    that values and habits that have left the window leave the model too.
    """

    start: Literal["auto", "warm", "fresh"] = "auto"
    fresh_every_days: Days | None = None

    @model_validator(mode="after")
    def _only_auto_has_a_period(self) -> Retrain:
        if self.start != "auto" and self.fresh_every_days is not None:
            raise ValueError(f"fresh_every_days={self.fresh_every_days} needs start=auto, it is {self.start}")
        return self


class Train(Strict):
    """The training loop. Batch sizes and rates are global: they do not depend on `num_ranks`.

    Both learning rates rise linearly over the first `warmup_share` of all steps, stay until `decay_start_share` of them,
    then fall to `decay_end_factor` of themselves as the `decay_power`-th power of the steps that are left. `learning_rate`
    is Adam's, for the dense layers; `embedding_learning_rate` is that of embedding tables, whose optimiser the section
    `embeddings` names. `clip_norm` bounds the Euclidean norm of all dense gradients of a step together. `baselines` names
    architectures that are trained and measured beside the model. Of the checkpoints the newest `keep_checkpoints` are kept,
    for a restart that finds the last one damaged.

    `precision` is that of the dense layers' matrix products; weights, gradients and the loss stay float32. `tf32`
    is a GPU's, a CPU computes float32 under it. fp16 scales the loss and skips the steps that overflow. `compile` has
    torch.compile turn the dense layers into fused kernels: it needs a C++ compiler on every node and, at the start, a
    minute. `cuda_graphs` replays them on a GPU without launching kernel after kernel.

    `kernels`: what computes lookups, their update and DLRM's interaction on a GPU. `auto` takes Triton's kernels where it finds
    the C compiler they need, otherwise torch's operators with a warning; `triton` makes that an error; `torch` never takes
    kernels. Results are equal but for rounding.
    """

    num_ranks: PositiveInt = 2
    elastic: Elastic | None = None
    num_shards: PositiveInt = 16
    global_batch_size: PositiveInt = 4096
    epochs: PositiveInt = 1
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    embedding_learning_rate: Annotated[float, Field(gt=0)] = 0.15
    embeddings: Embeddings = Embeddings()
    warmup_share: Share = 0.05
    decay_start_share: Share = 0.6
    decay_power: Annotated[float, Field(gt=0)] = 2.0
    decay_end_factor: Share = 0.0
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    cuda_graphs: bool = False
    kernels: Kernels = "auto"
    evaluate_every_steps: Annotated[int, Field(ge=0, lt=2**31)] = 0
    stop_at: StopAt | None = None
    profile: Profile | None = None
    checkpoint_every_steps: PositiveInt = 500
    keep_checkpoints: PositiveInt = 2
    log_every_steps: PositiveInt = 20
    seed: Seed = 0
    baselines: list[str] = []
    retrain: Retrain = Retrain()
    reading: Reading = Reading()
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
        if self.elastic and self.elastic.min_ranks > self.num_ranks:
            raise ValueError(
                f"elastic.min_ranks={self.elastic.min_ranks} must not be more than num_ranks={self.num_ranks}"
            )
        return self

    @model_validator(mode="after")
    def _evaluated(self) -> Train:
        if self.stop_at and not self.evaluate_every_steps:
            raise ValueError(
                "stop_at needs evaluate_every_steps above 0: it is decided where the model is measured"
            )
        return self

    @model_validator(mode="after")
    def _graphs_on_gpus(self) -> Train:
        if self.cuda_graphs and self.device == "cpu":
            raise ValueError("cuda_graphs=true needs a GPU, device=cpu has none")
        if self.kernels == "triton" and self.device == "cpu":
            raise ValueError("kernels=triton needs a GPU, device=cpu has none")
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
    replicates: Annotated[int, Field(ge=100, lt=2**31)] = 1000
    seed: Seed = 0
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
