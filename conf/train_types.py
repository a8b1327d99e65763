"""The typed configuration of the training of models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.embedding_types import Embeddings
from conf.loop_types import Elastic, Profile, Reading, Retrain, StopAt, TrainNegatives
from conf.loss_types import Loss, LossSettings, loss_field, loss_name, loss_settings
from conf.raw_types import PositiveInt, Seed, Share, Strict

Kernels = Literal["auto", "triton", "torch"]
UnknownShare = Annotated[float, Field(ge=0, lt=1)]
# What the scores of a model are. `click_probability`: the probability that a shown item is clicked.
# `probability`: that of a positive row among rows that were drawn for it. `ranking`: only their order means
# something.
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
        "rank with all cores, or one for each GPU of the machine. With another master, or if the training is "
        "elastic, one for each task that Spark can run at the same time; if tasks need a GPU, this is one "
        "for each GPU. The number is at most `num_shards` and divides it. Each rank is a process in a Spark "
        "task; only a single rank with a local master trains in the driver's process.",
    )
    elastic: Elastic | None = Field(
        default=None,
        description="How a training continues if ranks are lost. Null: the training fails if a rank is lost.",
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
    loss: Loss = loss_field()
    max_softmax_items: PositiveInt = Field(
        default=100_000,
        description="Largest number of items for loss=full_softmax: the sum, over the train days, of the "
        "number of items of a day. Every step computes the vectors of all of them. If there are more, the "
        "job fails.",
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
        "unknown values (OOV_ID), such as `{user_id: 0.1, item_id: 0.1}`. Other ids are replaced in every "
        "epoch, selected by a hash of (seed, epoch, row). The model then learns to score users and items "
        "that appear after the training, by their other features. Every feature must get its ids from "
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
        description="Memory of embedding rows in training. `device`: that of the device. `auto`: if the rows "
        "of a rank and their optimizer state need more than `embedding_memory_mib`, the rows of the most "
        "frequent ids are on the device, and the others in host memory. Results are the same.",
    )
    embedding_memory_mib: PositiveInt | None = Field(
        default=None,
        description="Memory of a rank's device for embedding rows and their optimizer state, in MiB "
        "(embedding_memory=auto). Null: three quarters of the GPU's free memory. A CPU needs a number.",
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
        "operators of torch. `auto`: Triton kernels if there is a C compiler, otherwise torch with a "
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
        "validation split, among the ends of all epochs and the evaluations every `evaluate_every_steps` "
        "steps. The measure is `stop_at.metric`, or the AUC. For each new best value, a checkpoint is saved; "
        "if there is no space for it, the model has the weights of the last step, and a warning names the "
        "best one. `last`: those of the last step.",
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
        "training uses an earlier one.",
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
        description="Whether a promoted model is trained again on the rows of all three splits, and the "
        "result makes the lists in its place (job refit_model). The gate and measures of models use only "
        "the model that was trained on the train split. It cannot be combined with "
        "`measure.against=test_split`.",
    )
    reading: Reading = Field(default=Reading(), description="How a rank reads feature tables.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="Device of the ranks. `cpu`: the CPU. `cuda`: a GPU; the job fails if there is none. "
        "`auto`: a GPU if there is one.",
    )
    start_timeout_s: PositiveInt = Field(
        default=180, description="Number of seconds that a training waits for all ranks to start."
    )

    @property
    def loss_name(self) -> str:
        """Returns the name of the loss."""
        return loss_name(self.loss)

    @property
    def loss_settings(self) -> LossSettings:
        """Returns the settings of the loss, which say what it compares."""
        return loss_settings(self.loss)

    @property
    def compares_vectors(self) -> bool:
        """Returns whether the loss compares user vectors with item vectors, instead of logits of rows."""
        return self.loss_settings.compares_vectors

    def score_kind(self, draws: bool) -> ScoreKind:
        """Returns what the scores of a trained model are.

        Args:
            draws: whether the rows with label 0 were drawn (section `negatives`), or rows have weights. Their
                number, or the weights, then decide how large the probabilities are.
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
        return self

    @model_validator(mode="after")
    def _negatives_fit(self) -> Train:
        if self.loss_settings.compares == "groups" and self.negatives is None:
            raise ValueError(
                f"loss={self.loss_name} compares a positive row with its negatives, so it needs the section "
                "negatives, such as {per_positive: 20}"
            )
        if self.compares_vectors and self.negatives:
            raise ValueError(f"loss={self.loss_name} does not draw negatives; set negatives=null")
        for name in ("compile", "cuda_graphs"):
            if self.only_positive_rows and getattr(self, name):
                cause = "negatives" if self.negatives else f"loss={self.loss_name}"
                raise ValueError(
                    f"{name}=true needs the same number of rows in every step, which {cause} does not "
                    f"give; set {name}=false"
                )
        return self

    @model_validator(mode="after")
    def _memory_of_rows(self) -> Train:
        if self.embedding_memory == "device" and self.embedding_memory_mib is not None:
            raise ValueError("embedding_memory_mib needs embedding_memory=auto")
        if self.embedding_memory == "auto" and self.device == "cpu" and self.embedding_memory_mib is None:
            raise ValueError("embedding_memory=auto with device=cpu needs embedding_memory_mib")
        return self

    @model_validator(mode="after")
    def _graphs_on_gpus(self) -> Train:
        if self.cuda_graphs and self.device == "cpu":
            raise ValueError("cuda_graphs=true needs a GPU, but device=cpu is set")
        if self.kernels == "triton" and self.device == "cpu":
            raise ValueError("kernels=triton needs a GPU, but device=cpu is set")
        return self
