"""The typed configuration of models and their training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from conf.raw_types import PositiveInt, Share, Strict

EmbeddingStorage = Literal["fp32", "bf16", "fp16"]


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
    replicated_max_bytes: Annotated[int, Field(ge=0)] = 4 * 2**20
    row_wise_share: Annotated[float, Field(gt=0)] = 0.5
    rank_max_bytes: PositiveInt | None = None


class Train(Strict):
    """The training loop. Batch sizes and rates are global: they do not depend on `num_ranks`.

    Both learning rates rise linearly over the first `warmup_share` of all steps, stay until `decay_start_share` of them,
    then fall to `decay_end_factor` of themselves as the `decay_power`-th power of the steps that are left. `learning_rate`
    is Adam's, for the dense layers; `embedding_learning_rate` is that of embedding tables, whose optimiser the section
    `embeddings` names. `clip_norm` bounds the Euclidean norm of all dense gradients of a step together. `baselines` names
    architectures that are trained and measured beside the model.

    `precision` is that of the dense layers' matrix products; weights, gradients and the loss stay float32. `tf32`
    is a GPU's, a CPU computes float32 under it. fp16 scales the loss and skips the steps that overflow. `compile` has
    torch.compile turn the dense layers into fused kernels: it needs a C++ compiler on every node and, at the start, a
    minute. `cuda_graphs` replays them on a GPU without launching kernel after kernel.
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
    evaluate_every_steps: Annotated[int, Field(ge=0)] = 0
    stop_at: StopAt | None = None
    profile: Profile | None = None
    checkpoint_every_steps: PositiveInt = 500
    log_every_steps: PositiveInt = 20
    seed: int = 0
    baselines: list[str] = []
    warm_start: bool = True
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
        return self


class Gate(Strict):
    """The champion is replaced unless the challenger's test AUC is lower by more than `margin`."""

    margin: Annotated[float, Field(ge=0)] = 0.002
