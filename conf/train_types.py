"""The typed configuration of models and of their training: architecture, losses, embedding tables, loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from conf.plugins import LOSS, PluginNames, description
from conf.raw_types import Days, PositiveInt, PositiveLong, Seed, Share, Strict

# The inputs from which a loss is computed; see LossSettings.
Compares = Literal["rows", "groups", "catalogue", "batch"]


class LossSettings(Strict):
    """Base of the settings of all losses. The docstring of a loss is its description in the reference.

    Attributes:
        compares: the inputs from which the loss is computed. `rows`: the logit of each row. `groups`: the
            logits of a positive row and of its negatives. `catalogue`: the user vector of a positive row, and
            the vectors of all items in the train rows of the row's day. `batch`: the user vector of a
            positive row, and the vectors of the items of all positive rows of the step.
        predicts_probabilities: whether the scores of a model that minimizes the loss are probabilities. If
            not, only the order of scores has a meaning.
    """

    compares: ClassVar[Compares] = "rows"
    predicts_probabilities: ClassVar[bool] = False

    @property
    def compares_vectors(self) -> bool:
        """Returns whether the loss compares user vectors with item vectors, instead of logits of rows."""
        return self.compares in ("catalogue", "batch")


def loss_name(loss: str | dict[str, dict[str, Any]]) -> str:
    """Returns the name of the loss that the key `train.loss` selects."""
    return loss if isinstance(loss, str) else next(iter(loss))


def loss_settings(loss: str | dict[str, dict[str, Any]]) -> LossSettings:
    """Returns the settings of the loss that the key `train.loss` selects.

    Raises:
        ConfigError: the module of a package cannot be imported, or has no class `Settings`.
        ValidationError: a key is not one of the settings, or a value breaks its rule.
    """
    kind: type[LossSettings] = LOSS.get(loss_name(loss)).settings(LossSettings)
    return kind.model_validate({} if isinstance(loss, str) else loss[loss_name(loss)])


def _known_loss(value: Any) -> Any:
    """Checks the name and the settings of a loss. Returns only the name if there are no settings."""
    if isinstance(value, dict) and len(value) == 1:
        name, settings = next(iter(value.items()))
    else:
        name, settings = value, {}
    if not isinstance(name, str) or not isinstance(settings, dict | None):
        raise ValueError(
            "write the name of a loss, such as bce, or its name with its settings, such as "
            "{name: {key: value}}"
        )
    if LOSS.find(name) is None:
        raise ValueError(f"there is no such loss; known: {LOSS.names()}")
    loss_settings({name: settings or {}})
    return {name: settings} if settings else name


class _Names(PluginNames):
    """Adds losses with settings to the JSON schema of `train.loss`, as mappings from name to settings."""

    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of the key `train.loss`."""
        kinds = built_in_losses().items()
        sections = {name: kind.model_json_schema() for name, kind in kinds if kind.model_fields}
        if not sections:
            return super().schema()
        section = {"type": "object", "additionalProperties": False, "properties": sections}
        return {"anyOf": [super().schema(), {**section, "minProperties": 1, "maxProperties": 1}]}


Loss = Annotated[str | dict[str, dict[str, Any]], BeforeValidator(_known_loss), _Names(LOSS)]

_NEEDS: Mapping[Compares, str] = {
    "rows": "",
    "groups": " It needs `negatives`.",
    "catalogue": " It needs a model with user vectors and item vectors.",
    "batch": " It needs a model with user vectors and item vectors.",
}


def built_in_losses() -> dict[str, type[LossSettings]]:
    """Maps the name of each loss of the checkout to the type of its settings."""
    return {one.name: one.settings(LossSettings) for one in LOSS.plugins()}


def _describe(schema: dict[str, Any]) -> None:
    """Adds a description of each loss of the checkout to the description of the key `train.loss`."""
    for name, kind in built_in_losses().items():
        schema["description"] += f" `{name}`: {description(kind)}{_NEEDS[kind.compares]}"


def loss_field() -> Any:
    """Returns the field `train.loss`.

    When a schema is created, the description of the field lists the losses.
    """
    return Field(
        default="bce",
        description="Loss of a step. A loss with settings is written as `{name: {key: value}}`. Only `bce` "
        "predicts probabilities; the other losses train models that order items. Losses over item vectors "
        "leave out all rows with label 0, and do not use `negatives`; the architectures two_tower, sasrec, "
        "hstu, bert4rec and mult_vae have such vectors. Packages may add losses (docs/extending.md).",
        json_schema_extra=_describe,
    )


# The classes below are the typed configuration of models and of their training.

EmbeddingStorage = Literal["fp32", "bf16", "fp16"]


class MultiHot(Strict):
    """Settings for features that are lists of ids."""

    pooling: Literal["sum", "mean"] = Field(
        default="mean",
        description="How the vectors of the ids are combined. `sum`: they are added. `mean`: the sum is "
        "divided by the number of ids. An empty list gives zeros.",
    )
    max_length: PositiveInt = Field(
        default=32,
        description="Largest number of ids of a list that training and scoring use. If a list is longer, "
        "only its first ids are used. A batch reserves memory for this number of ids in every row.",
    )
    lengths: dict[str, PositiveInt] = Field(
        default={},
        description="Maps the name of a feature to the `max_length` of its lists. All other features use "
        "the key `max_length`.",
    )


class ModelConfig(Strict):
    """An architecture and its settings.

    All keys except those below are settings of the architecture (docs/models.md). Every job checks these
    settings when it starts.
    """

    model_config = ConfigDict(extra="allow")

    architecture: str = Field(
        description="Name of a module in training/architectures, or of an architecture from a package."
    )
    multi_hot: MultiHot = Field(
        default=MultiHot(), description="How the model reads features that are lists of ids."
    )
    embedding_storage: EmbeddingStorage = Field(
        default="fp32",
        description="How embedding tables are stored in memory and on disk. `fp32`: 32 bits per number. "
        "`bf16` and `fp16`: 16 bits, which halve the size of a table; `bf16` has the range of float32, and "
        "`fp16` has more significant bits. With 16 bits, updates are rounded stochastically, and all "
        "computations use float32. "
        "Weights of linear parts, one number per id, are always fp32.",
    )

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings of the architecture, unchanged."""
        return dict(self.model_extra or {})


class Embeddings(Strict):
    """Settings of the training of embedding tables, and of the placement of their rows on ranks.

    Placement does not change results, except for rounding.

    With `placement: auto`, every rank holds all tables of at most `replicated_max_bytes`. Let b be the total
    number of bytes of all larger tables, divided by the number of ranks. If a table has more than
    `row_wise_share` × b bytes, its rows are distributed over all ranks. If a rank would still hold more than
    `rank_max_bytes`, the rows of further tables are distributed too, the largest table first. Each other
    table is on one rank. The bytes of a table include the state of its optimizer.
    """

    optimizer: Literal["row_wise_adagrad", "sgd", "lazy_adam"] = Field(
        default="row_wise_adagrad",
        description="Optimizer of table rows, with the learning rate `train.embedding_learning_rate`. "
        "`row_wise_adagrad`: Adagrad with one accumulator per row. `sgd`: stochastic gradient descent, "
        "without state. `lazy_adam`: Adam, in which a step changes only the rows that it looked up. The "
        "optimizer does not apply to weights that a model trains with FTRL.",
    )
    placement: Literal["auto", "replicated", "table_wise", "row_wise"] = Field(
        default="auto",
        description="`replicated`: every rank holds every table. `table_wise`: each table is on one rank. "
        "`row_wise`: the rows of each table are distributed over all ranks. `auto` decides for each "
        "feature. If there is only one rank, it holds all tables.",
    )
    replicated_max_bytes: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=4 * 2**20,
        description="Largest size, in bytes, of a table that every rank holds (placement=auto).",
    )
    row_wise_share: Annotated[float, Field(gt=0)] = Field(
        default=0.5,
        description="The rows of a table are distributed over all ranks if the table has more than this "
        "share of b bytes. Here b is the total size of all tables that are not replicated, divided by the "
        "number of ranks (placement=auto).",
    )
    rank_max_bytes: PositiveLong | None = Field(
        default=None,
        description="Largest number of bytes of embedding tables on a rank. If the tables do not fit, the "
        "job fails. Null: no limit.",
    )


# Most of the classes below are sections of `train`, such as `elastic` and `retrain`.


class Elastic(Strict):
    """Elastic training: if ranks are lost, the other ranks continue from the last checkpoint.

    If Spark starts lost ranks again, or later has resources for more ranks, these ranks join the training at
    a checkpoint. There are never more than `train.num_ranks` ranks.
    """

    min_ranks: PositiveInt = Field(
        default=1,
        description="Smallest number of ranks. If there are fewer, the training waits "
        "`train.start_timeout_s` seconds for more ranks, and fails if they do not start.",
    )


class StopAt(Strict):
    """A condition that ends training early. `train.keep` decides which weights the model has in this case.

    The metric is measured on the validation split every `train.evaluate_every_steps` steps. With
    `train.keep: best`, it is also measured at the end of each epoch.
    """

    metric: Literal["auc", "log_loss", "normalized_entropy"] = Field(
        default="auc",
        description="Metric that decides when the training ends. `auc`: area under the ROC curve; a larger "
        "value is better. `log_loss`: mean log loss of a row; a smaller value is better. "
        "`normalized_entropy`: log loss divided by that of a model that predicts the click rate for every "
        "row; a smaller value is better. `log_loss` and `normalized_entropy` need a loss whose scores are "
        "probabilities, such as `bce`.",
    )
    value: float | None = Field(
        default=None,
        description="The training ends when the metric is at least as good as this value. Null: no target.",
    )
    patience: PositiveInt | None = Field(
        default=None,
        description="The training ends after this number of consecutive evaluations without a new best value "
        "of the metric. Null: no limit.",
    )

    @model_validator(mode="after")
    def _asks_for_something(self) -> StopAt:
        if self.value is None and self.patience is None:
            raise ValueError("stop_at needs the key `value`, the key `patience`, or both")
        return self


class Profile(Strict):
    """Training steps that torch.profiler records.

    The trace is written to `<lake>/checkpoints/<model version>.profile`.
    """

    first_step: PositiveInt = Field(default=10, description="First recorded step, counted from 1.")
    steps: PositiveInt = Field(default=5, description="Number of recorded steps.")
    every_rank: bool = Field(
        default=False, description="Whether all ranks write a trace, instead of only rank 0."
    )


class TrainNegatives(Strict):
    """Negatives that are drawn again for every row in every epoch.

    In contrast, the section `negatives` adds the same rows for all epochs. This section is for logs that
    record only what users chose, so the section `negatives` is required. In training, each positive row is
    used with `per_positive` items that are drawn by a hash of (seed, epoch, row, draw). Items are drawn from
    the items in the train rows of the row's day, and have the features of that day. An item that the user
    chose on that day or on an earlier train day is replaced by another draw. All other rows are left out: the
    negatives that `negatives` added to the train split, and rows of the log with label 0. The validation and
    test splits are measured with the negatives that `negatives` added.
    """

    per_positive: PositiveInt = Field(
        default=20, description="Number of items that are drawn for each positive row in each epoch."
    )
    popularity: Annotated[float, Field(ge=0, le=4)] = Field(
        default=0.0,
        description="An item is drawn with a probability proportional to its number of positive train rows "
        "of the day, to the power of `popularity`. 0: all items are equally likely.",
    )


class Reading(Strict):
    """Settings for reading feature tables in a rank.

    Rows are shuffled in buffer pools, and then divided into batches. A rank decodes row groups before a pool
    needs them; `read_ahead_mib` limits the size of the decoded row groups. With a GPU, pools are made in the
    GPU's memory from the columns of row groups, if pools and row groups need at most `device_mib`. If the
    lake is on an object store, the rank first copies each row group to a local folder. The rank deletes each
    copy after reading it.
    """

    pool_rows: PositiveInt = Field(
        default=131_072,
        description="Number of rows in the current buffer pools of all ranks together. A pool has at least "
        "4 batches.",
    )
    pools: Literal["auto", "host", "device"] = Field(
        default="auto",
        description="Where buffer pools are made. The batches do not depend on this. `host`: in the memory "
        "of the host, from which training on a GPU copies them. `device`: in the memory of the "
        "training's device. `auto`: like `device` if the training uses a GPU on which pools and row groups "
        "need at most `device_mib`, otherwise like `host`.",
    )
    device_mib: PositiveInt = Field(
        default=8192,
        description="Largest amount of device memory, in MiB, for pools and the row groups from which they "
        "are made. A rank needs memory for five pools, for the decoded rows of one "
        "pool, and for at most two more row groups of each shard.",
    )
    threads: PositiveInt | None = Field(
        default=None,
        description="Number of threads that decode row groups. Null: 4 for training on a GPU, 1 otherwise.",
    )
    read_ahead_mib: PositiveInt | None = Field(
        default=None,
        description="Largest size, in MiB, of the decoded row groups that wait for a pool. Each thread may "
        "always decode one more row group. Null: 256, but on a GPU at least the size of one row group for "
        "each of the rank's shards, because a pool may need a new row group of every shard.",
    )
    staging_folder: str | None = Field(
        default=None,
        description="Local folder for copies of row groups. Each rank creates its own folder in the "
        "subfolder `nightrank-<user id>`. Null: the folder of temporary files ($TMPDIR, or /tmp).",
    )
    staging_mib: PositiveInt = Field(
        default=16_384,
        description="Largest size, in MiB, of the copies of row groups that wait to be read. The copy that "
        "is being read and the copy that is being written are not counted.",
    )


class Retrain(Strict):
    """The weights and vocabularies from which a retraining starts."""

    start: Literal["auto", "warm", "fresh"] = Field(
        default="auto",
        description="`warm`: from the weights of the champion; new values are added to the champion's "
        "vocabularies. If that is not possible, the job fails and says why. `fresh`: from random weights, "
        "with vocabularies that are fitted only to the train days. `auto`: `warm` if possible, otherwise "
        "`fresh`. A log whose `path` has no `{date}` allows only fresh starts.",
    )
    fresh_every_days: Days | None = Field(
        default=None,
        description="With start=auto, a retraining is also fresh if the last fresh training run is at least "
        "this number of days old. The model then forgets values that no longer occur in the train days. "
        "Null: no such limit.",
    )

    @model_validator(mode="after")
    def _only_auto_has_a_period(self) -> Retrain:
        if self.start != "auto" and self.fresh_every_days is not None:
            raise ValueError(
                f"fresh_every_days={self.fresh_every_days} needs start=auto, but start={self.start} is set: "
                "set start=auto, or remove fresh_every_days"
            )
        return self


Kernels = Literal["auto", "triton", "torch"]
UnknownShare = Annotated[float, Field(ge=0, lt=1)]

# The meaning of a model's scores. `click_probability`: the probability that a shown item is clicked.
# `probability`: the probability that a row of the training data is positive; it depends on the drawn
# negatives or on the weights of rows. `ranking`: only the order of scores has a meaning.
ScoreKind = Literal["click_probability", "probability", "ranking"]


class Train(Strict):
    """The training loop. Batch sizes and learning rates are global: they do not depend on `num_ranks`.

    Both learning rates rise linearly during the first `warmup_share` of all steps. They stay constant until
    `decay_start_share` of all steps is done. Then they fall to `decay_end_factor` times the constant value.
    The difference from this final value is proportional to r ^ `decay_power`. Here r falls from 1 to 0: it is
    the number of remaining steps, divided by the number of all steps of the decay.
    """

    num_ranks: PositiveInt | Literal["auto"] = Field(
        default="auto",
        description="Number of training processes, called ranks. `auto`: if Spark has a local master, one "
        "rank with all cores, or one for each GPU of the machine. With another master, or if the training "
        "is elastic, there is one rank for each task that Spark can run at the same time. If tasks need a "
        "GPU, there is one rank for each GPU. The number is at most `num_shards` and divides it. Each rank "
        "is a process in a Spark task; only a single rank with a local master trains in the driver's "
        "process.",
    )
    elastic: Elastic | None = Field(
        default=None,
        description="How training continues if ranks are lost. Null: training fails if a rank is lost.",
    )
    num_shards: PositiveInt = Field(
        default=16,
        description="Number of shards into which the rows are divided. It must be a multiple of `num_ranks`, "
        "because every rank reads the same number of shards. Results depend on the number of shards, but not "
        "on the number of ranks.",
    )
    global_batch_size: PositiveInt = Field(
        default=4096,
        description="Number of rows of a step, over all ranks. It must be a multiple of `num_shards`.",
    )
    epochs: PositiveInt = Field(default=1, description="Number of passes over the train rows.")
    shuffle: Literal["rows", "users"] = Field(
        default="rows",
        description="The order of rows in an epoch. `rows`: rows are shuffled one by one. `users`: the "
        "rows of each row group are ordered by user and time, and blocks of 32 successive rows are "
        "shuffled. Then `sasrec` or `hstu` with `blocks: 1` encodes items only once if they occur in "
        "several successive histories of a user. This makes training faster if users have several rows in a "
        "row group. It needs the section `keys`.",
    )
    loss: Loss = loss_field()
    max_softmax_items: PositiveInt = Field(
        default=100_000,
        description="Limit for loss=full_softmax, whose steps compute one vector for each item of each train "
        "day. If the number of items, added up over the train days, is larger, the job fails.",
    )
    l2: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="L2 regularization. A step adds `l2` times the weight to the gradient of each weight of "
        "the dense layers, and of each table row that has a gradient in this step. It does not apply to "
        "biases, to normalization layers, or to weights that a model trains with FTRL.",
    )
    negatives: TrainNegatives | None = Field(
        default=None,
        description="Negatives that are drawn anew in every epoch. Null: the train rows are used as "
        "build_features wrote them.",
    )
    unknown_share: dict[str, UnknownShare] = Field(
        default={},
        description="Maps the name of a feature to the share of its ids that training replaces by the id of "
        "unknown values (OOV_ID), such as `{user_id: 0.1, item_id: 0.1}`. A hash of (seed, epoch, row) "
        "selects these ids, so each epoch replaces different ids. The model then learns to score users and "
        "items that appear after the training, by their other features. Every feature must get its ids from "
        "`categorify` with oov_buckets=1. Validation, test and scoring never replace ids.",
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=3e-3, description="Learning rate of Adam, for the dense layers."
    )
    embedding_learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=0.15, description="Learning rate of the embedding tables."
    )
    embeddings: Embeddings = Field(
        default=Embeddings(), description="Optimizer and placement of embedding tables."
    )
    embedding_memory: Literal["device", "auto"] = Field(
        default="device",
        description="Memory of embedding rows in training. `device`: the memory of the device. `auto`: if "
        "the rows and optimizer state of a rank need more than `embedding_memory_mib`, the rows of the most "
        "frequent ids are on the device, and the others in host memory. Results are the same.",
    )
    embedding_memory_mib: PositiveInt | None = Field(
        default=None,
        description="Memory of a rank's device for embedding rows and their optimizer state, in MiB "
        "(embedding_memory=auto). Null: three quarters of the GPU's free memory. On a CPU, null is not "
        "allowed.",
    )
    warmup_share: Share = Field(
        default=0.05, description="Share of all steps over which the learning rates rise from 0."
    )
    decay_start_share: Share = Field(
        default=0.6, description="Share of all steps after which the learning rates begin to fall."
    )
    decay_power: Annotated[float, Field(gt=0)] = Field(
        default=2.0, description="Exponent of the decay of the learning rates."
    )
    decay_end_factor: Share = Field(
        default=0.0,
        description="Final value of the learning rates, divided by their value before the decay.",
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Largest Euclidean norm of the vector of all dense gradients of a step. Null: no limit.",
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(
        default="fp32",
        description="Precision of the matrix products of dense layers. Weights, gradients and the loss are "
        "always float32. `fp32`: float32. `tf32` is for GPUs; a CPU uses float32 instead. `bf16`: bfloat16. "
        "`fp16`: float16, which scales the loss and skips steps that overflow.",
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
        "operators of torch. `auto`: Triton kernels if every rank has a C compiler, otherwise torch with a "
        "warning. Results differ only by rounding.",
    )
    evaluate_every_steps: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=0,
        description="Number of steps between two evaluations on the validation split. 0: the model is "
        "evaluated only at the end of each epoch (keep=best), or not during the training (keep=last).",
    )
    keep: Literal["best", "last"] = Field(
        default="best",
        description="Which weights a trained model has. `best`: those with the best measure on the "
        "validation split, which is evaluated at the end of each epoch and every `evaluate_every_steps` "
        "steps. The measure is `stop_at.metric`, or the AUC. For each new best value, a checkpoint is saved. "
        "If there is no space for the checkpoint, the model has the weights of the last step, and a warning "
        "names the best step. `last`: those of the last step.",
    )
    stop_at: StopAt | None = Field(
        default=None,
        description="Condition that ends the training before its last step. Null: the training does all "
        "steps.",
    )
    profile: Profile | None = Field(
        default=None, description="Steps that torch.profiler records. Null: none."
    )
    checkpoint_every_steps: PositiveInt = Field(
        default=500, description="Number of steps between two checkpoints."
    )
    keep_checkpoints: PositiveInt = Field(
        default=2,
        description="Number of newest checkpoints to keep. If the newest checkpoint is damaged, a restarted "
        "training run uses an earlier one.",
    )
    log_every_steps: PositiveInt = Field(default=20, description="Number of steps between two log messages.")
    seed: Seed = Field(default=0, description="Seed of initial weights, order of rows and dropout.")
    baselines: list[str] = Field(
        default=[], description="Architectures that are trained and measured in addition to the model."
    )
    retrain: Retrain = Field(
        default=Retrain(), description="Which weights and vocabularies a retraining starts from."
    )
    refit: bool = Field(
        default=False,
        description="Whether a promoted model is trained again on the rows of all three splits (job "
        "refit_model). The resulting model then makes the lists. The gate and measures of models use only "
        "the model that was trained on the train split. `refit` cannot be combined with "
        "`measure.against=test_split`.",
    )
    reading: Reading = Field(default=Reading(), description="How a rank reads feature tables.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="Device of the ranks. `cpu`: the CPU. `cuda`: a GPU; the job fails if there is none. "
        "`auto`: a GPU if there is one.",
    )
    start_timeout_s: PositiveInt = Field(
        default=180, description="Number of seconds that a training run waits for all ranks to start."
    )

    @property
    def loss_name(self) -> str:
        """Returns the name of the loss."""
        return loss_name(self.loss)

    @property
    def loss_settings(self) -> LossSettings:
        """Returns the settings of the loss."""
        return loss_settings(self.loss)

    @property
    def compares_vectors(self) -> bool:
        """Returns whether the loss compares user vectors with item vectors, instead of logits of rows."""
        return self.loss_settings.compares_vectors

    def score_kind(self, draws: bool) -> ScoreKind:
        """Returns the meaning of the scores of a trained model.

        Args:
            draws: whether the rows with label 0 were drawn (section `negatives`), or rows have weights. If
                so, the probabilities depend on the number of drawn rows or on the weights.
        """
        if not self.loss_settings.predicts_probabilities:
            return "ranking"
        return "probability" if draws or self.negatives else "click_probability"

    @property
    def only_positive_rows(self) -> bool:
        """Returns whether training leaves out the train rows with label 0."""
        return self.negatives is not None or self.compares_vectors

    @model_validator(mode="after")
    def _divisible(self) -> Train:
        if self.num_ranks != "auto" and self.num_shards % self.num_ranks:
            raise ValueError(f"num_shards={self.num_shards} must be a multiple of num_ranks={self.num_ranks}")
        if self.global_batch_size % self.num_shards:
            raise ValueError(
                f"global_batch_size={self.global_batch_size} must be a multiple of "
                f"num_shards={self.num_shards}"
            )
        if self.elastic and self.num_ranks != "auto" and self.elastic.min_ranks > self.num_ranks:
            raise ValueError(
                f"elastic.min_ranks={self.elastic.min_ranks} must not be more than num_ranks={self.num_ranks}"
            )
        return self

    @model_validator(mode="after")
    def _evaluated(self) -> Train:
        if self.stop_at and not self.evaluate_every_steps:
            raise ValueError(
                "stop_at needs evaluate_every_steps above 0, because evaluations decide when training stops"
            )
        if self.stop_at and self.stop_at.metric != "auc" and not self.loss_settings.predicts_probabilities:
            raise ValueError(
                f"stop_at.metric={self.stop_at.metric} needs probabilities, but scores of a model with "
                f"loss={self.loss_name} are not probabilities; set stop_at.metric=auc"
            )
        return self

    @model_validator(mode="after")
    def _negatives_fit(self) -> Train:
        if self.loss_settings.compares == "groups" and self.negatives is None:
            raise ValueError(
                f"loss={self.loss_name} compares a positive row with its negatives, so it needs the section "
                "negatives, such as {per_positive: 20}"
            )
        if self.compares_vectors and self.negatives:
            raise ValueError(f"loss={self.loss_name} does not use drawn negatives; set negatives=null")
        for name in ("compile", "cuda_graphs"):
            if self.only_positive_rows and getattr(self, name):
                cause = "negatives" if self.negatives else f"loss={self.loss_name}"
                raise ValueError(
                    f"{name}=true needs the same number of rows in every step, but with {cause} this number "
                    f"varies; set {name}=false"
                )
        return self

    @model_validator(mode="after")
    def _memory_of_rows(self) -> Train:
        if self.embedding_memory == "device" and self.embedding_memory_mib is not None:
            raise ValueError("embedding_memory_mib needs embedding_memory=auto: set both, or neither")
        if self.embedding_memory == "auto" and self.device == "cpu" and self.embedding_memory_mib is None:
            raise ValueError("embedding_memory=auto with device=cpu needs embedding_memory_mib: add this key")
        return self

    @model_validator(mode="after")
    def _graphs_on_gpus(self) -> Train:
        if self.cuda_graphs and self.device == "cpu":
            raise ValueError("cuda_graphs=true needs a GPU, but device=cpu is set: change one of the two")
        if self.kernels == "triton" and self.device == "cpu":
            raise ValueError("kernels=triton needs a GPU, but device=cpu is set: change one of the two")
        return self
