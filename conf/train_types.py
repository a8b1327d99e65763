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


class Reading(Strict):
    """How a rank reads feature tables.

    Rows are shuffled and cut into batches in pools of `pool_rows` rows, summed over all ranks (at least 4 batches). Row groups
    are decoded up to `read_ahead_mib` ahead of the pool that needs them, and one beyond. Files of a lake that is no local path
    are copied ahead, a row group at a time, to a folder of each rank's own below `staging_folder` (by default that of temporary
    files) and deleted once read: `staging_mib` may lie there, and beyond it the one being read and the one being copied.
    """

    pool_rows: PositiveInt = 131_072
    read_ahead_mib: PositiveInt = 1024
    staging_folder: str | None = None
    staging_mib: PositiveInt = 16_384


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
    warm_start: bool = True
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
        return self


class Gate(Strict):
    """The champion is replaced unless the challenger's test AUC is lower by more than `margin`."""

    margin: Annotated[float, Field(ge=0)] = 0.002
