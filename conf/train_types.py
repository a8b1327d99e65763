"""The typed configuration of models and their training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from conf.loop_types import Profile, Reading, Retrain, StopAt
from conf.raw_types import PositiveInt, PositiveLong, Seed, Share, Strict

EmbeddingStorage = Literal["fp32", "bf16", "fp16"]
Kernels = Literal["auto", "triton", "torch"]


class MultiHot(Strict):
    """How a feature that is a list of ids enters a model."""

    pooling: Literal["sum", "mean"] = Field(
        default="mean", description="How the vectors of the ids are combined. An empty list gives zeros."
    )
    max_length: PositiveInt = Field(
        default=32,
        description="Number of ids of a list that are used in training and scoring: the first ones. A batch "
        "reserves memory for this number of ids in every row.",
    )
    lengths: dict[str, PositiveInt] = Field(default={}, description="Feature → its `max_length`.")


class ModelConfig(Strict):
    """An architecture and its settings.

    All keys except those below are settings of the architecture (docs/models.md). They are checked at the
    beginning of every job.
    """

    model_config = ConfigDict(extra="allow")

    architecture: str = Field(description="Name of a module in training/models.")
    multi_hot: MultiHot = Field(
        default=MultiHot(), description="How features that are lists of ids enter the model."
    )
    embedding_storage: EmbeddingStorage = Field(
        default="fp32",
        description="How embedding tables are stored in memory and on disk. A format of 16 bits halves the "
        "size of a table; updates are then rounded stochastically, and all computations use float32. "
        "Weights of linear parts, one number per id, are always fp32.",
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the architecture, unchanged."""
        return dict(self.model_extra or {})


class Elastic(Strict):
    """If ranks are lost during a training, the other ranks continue from the last checkpoint.

    If Spark restarts ranks, or has resources for more of them later, the new ranks join at a checkpoint, up
    to `train.num_ranks`.
    """

    min_ranks: PositiveInt = Field(
        default=1,
        description="Smallest number of ranks. If there are fewer, the training waits "
        "`train.start_timeout_s` for more ranks, and fails if they do not start.",
    )


class Embeddings(Strict):
    """How embedding tables are trained, and which rank holds which rows.

    Placement does not change results, except for rounding.

    With `placement: auto`, every rank holds the tables of up to `replicated_max_bytes`. The rows of a larger
    table are distributed over all ranks in two cases: its bytes are above `row_wise_share` of the average
    bytes of a rank, or a rank would otherwise hold more than `rank_max_bytes`. Each other table is on one
    rank. The bytes of a table include the state of its optimizer.
    """

    optimizer: Literal["row_wise_adagrad", "sgd", "lazy_adam"] = Field(
        default="row_wise_adagrad",
        description="Optimizer of table rows, with the learning rate `train.embedding_learning_rate`. It "
        "does not apply to weights that a model trains with FTRL.",
    )
    placement: Literal["auto", "replicated", "table_wise", "row_wise"] = Field(
        default="auto",
        description="`replicated`: every rank holds every table. `table_wise`: each table is on one rank. "
        "`row_wise`: the rows of each table are distributed over all ranks. `auto` decides for each "
        "feature. A single rank holds all tables.",
    )
    replicated_max_bytes: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=4 * 2**20, description="Largest table in bytes that every rank holds (placement=auto)."
    )
    row_wise_share: Annotated[float, Field(gt=0)] = Field(
        default=0.5,
        description="Share of a rank's average bytes; the rows of a larger table are distributed over all "
        "ranks (placement=auto).",
    )
    rank_max_bytes: PositiveLong | None = Field(
        default=None,
        description="Largest number of bytes of tables on a rank. If the tables do not fit, the job fails. "
        "Null: no limit.",
    )


class Train(Strict):
    """The training loop. Batch sizes and learning rates are global: they do not depend on `num_ranks`.

    Both learning rates rise linearly over the first `warmup_share` of all steps. They stay constant until
    `decay_start_share` of all steps. Then they fall to `decay_end_factor` times their value. Their distance
    from this final value is proportional to the share of remaining steps to the power of `decay_power`.
    """

    num_ranks: PositiveInt = Field(default=2, description="Number of training processes.")
    elastic: Elastic | None = Field(
        default=None, description="How a training continues if ranks are lost. Null: it fails."
    )
    num_shards: PositiveInt = Field(
        default=16,
        description="Number of logical shards of the data, a multiple of `num_ranks`. Results depend on this "
        "number, but not on the number of ranks.",
    )
    global_batch_size: PositiveInt = Field(
        default=4096, description="Rows of a step over all ranks, a multiple of `num_shards`."
    )
    epochs: PositiveInt = Field(default=1, description="Number of passes over the train rows.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=3e-3, description="Learning rate of Adam, for the dense layers."
    )
    embedding_learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=0.15, description="Learning rate of the embedding tables."
    )
    embeddings: Embeddings = Field(
        default=Embeddings(), description="Optimizer and placement of embedding tables."
    )
    warmup_share: Share = Field(
        default=0.05, description="Share of all steps over which the learning rates rise from 0."
    )
    decay_start_share: Share = Field(
        default=0.6, description="Share of all steps after which the learning rates fall."
    )
    decay_power: Annotated[float, Field(gt=0)] = Field(
        default=2.0, description="Exponent of the decay of the learning rates."
    )
    decay_end_factor: Share = Field(default=0.0, description="Factor of the learning rates at the last step.")
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Largest Euclidean norm of the vector of all dense gradients of a step. Null: no limit.",
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(
        default="fp32",
        description="Precision of the matrix products of dense layers. Weights, gradients and the loss are "
        "always float32. `tf32` is for GPUs; a CPU uses float32 instead. `fp16` scales the "
        "loss and skips steps that overflow.",
    )
    compile: bool = Field(
        default=False,
        description="Whether torch.compile fuses the dense layers. It needs a C++ compiler on every node "
        "and about a minute at the start.",
    )
    cuda_graphs: bool = Field(
        default=False,
        description="Whether a GPU replays the dense layers as a CUDA graph, instead of launching each "
        "kernel.",
    )
    kernels: Kernels = Field(
        default="auto",
        description="Kernels for embedding lookups, their updates and DLRM's interaction on a GPU. `triton`: "
        "Triton kernels; they need a C compiler, and the job fails if there is none. `torch`: "
        "operators of torch. `auto`: Triton kernels if there is a C compiler, otherwise torch with a "
        "warning. Results differ only by rounding.",
    )
    evaluate_every_steps: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=0,
        description="Steps between two evaluations on the validation split. 0: none during the training.",
    )
    stop_at: StopAt | None = Field(
        default=None, description="When the training ends before its last step. Null: never."
    )
    profile: Profile | None = Field(
        default=None, description="Steps that torch.profiler records. Null: none."
    )
    checkpoint_every_steps: PositiveInt = Field(default=500, description="Steps between two checkpoints.")
    keep_checkpoints: PositiveInt = Field(
        default=2,
        description="Number of newest checkpoints to keep. If the last one is damaged, a restart uses an "
        "earlier one.",
    )
    log_every_steps: PositiveInt = Field(default=20, description="Steps between two log messages.")
    seed: Seed = Field(default=0, description="Seed of initial weights, order of rows and dropout.")
    baselines: list[str] = Field(
        default=[], description="Architectures that are trained and measured in addition to the model."
    )
    retrain: Retrain = Field(default=Retrain(), description="How a retraining starts.")
    reading: Reading = Field(default=Reading(), description="How a rank reads feature tables.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Device of the ranks. `auto`: a GPU if there is one."
    )
    start_timeout_s: PositiveInt = Field(
        default=180, description="Seconds that the training waits for all ranks to start."
    )

    @model_validator(mode="after")
    def _divisible(self) -> Train:
        if self.num_shards % self.num_ranks:
            raise ValueError(f"num_shards={self.num_shards} must be a multiple of num_ranks={self.num_ranks}")
        if self.global_batch_size % self.num_shards:
            raise ValueError(
                f"global_batch_size={self.global_batch_size} must be a multiple of "
                f"num_shards={self.num_shards}"
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
                "stop_at needs evaluate_every_steps above 0, because it uses the results of evaluations"
            )
        return self

    @model_validator(mode="after")
    def _graphs_on_gpus(self) -> Train:
        if self.cuda_graphs and self.device == "cpu":
            raise ValueError("cuda_graphs=true needs a GPU, but device=cpu is set")
        if self.kernels == "triton" and self.device == "cpu":
            raise ValueError("kernels=triton needs a GPU, but device=cpu is set")
        return self
