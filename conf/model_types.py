"""The typed configuration of a model: its architecture and the settings that all architectures share."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from conf.raw_types import PositiveInt, Strict

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
        description="Largest number of ids of a list that training and scoring use. Of a longer list, only "
        "the first ids are used. A batch reserves memory for this number of ids in every row.",
    )
    lengths: dict[str, PositiveInt] = Field(
        default={},
        description="Maps the name of a feature to the `max_length` of its lists. All other features have "
        "the `max_length` above.",
    )


class ModelConfig(Strict):
    """An architecture and its settings.

    All keys except those below are settings of the architecture (docs/models.md). Every job checks these
    settings when it starts.
    """

    model_config = ConfigDict(extra="allow")

    architecture: str = Field(description="Name of a module in training/architectures.")
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
