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
    then decay with power 2 to zero. `learning_rate` is Adam's, for the dense layers; `embedding_learning_rate` is
    that of embedding tables, whose optimiser the section `embeddings` names. `baselines` names architectures that are trained
    and measured beside the model. Of the checkpoints the newest `keep_checkpoints` are kept, for a restart that finds the last
    one damaged.
    """

    num_ranks: PositiveInt = 2
    num_shards: PositiveInt = 16
    global_batch_size: PositiveInt = 4096
    epochs: PositiveInt = 1
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    embedding_learning_rate: Annotated[float, Field(gt=0)] = 0.15
    embeddings: Embeddings = Embeddings()
    warmup_share: Share = 0.05
    decay_start_share: Share = 0.6
    checkpoint_every_steps: PositiveInt = 500
    keep_checkpoints: PositiveInt = 2
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
        return self


class Gate(Strict):
    """The champion is replaced unless the challenger's test AUC is lower by more than `margin`."""

    margin: Annotated[float, Field(ge=0)] = 0.002
