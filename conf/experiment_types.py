"""The typed contents of an experiments file, which compare_models reads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from conf.names import FolderName, PlainText
from conf.raw_types import Seed, Strict

Measure = Literal["auc", "log_loss", "normalized_entropy"]

# Upper limit of experiments × seeds in a file. A longer comparison needs several files.
MOST_TRAININGS = 100


class ExperimentRun(Strict):
    """One experiment of the list `runs`: the configuration with some changed settings."""

    name: PlainText = Field(description="Name of the experiment in tables, charts and MLflow.")
    changes: dict[str, Any] = Field(
        default={},
        alias="set",
        description="Maps dotted keys in the sections `model` and `train` to their values, such as "
        "`train.learning_rate: 0.001`. The key `model` replaces the whole model; its value is a section or "
        "the name of a model file, relative to the experiments file. Empty: the configuration as it is.",
    )


class Experiments(Strict):
    """An experiments file: models and settings that compare_models trains on one dataset and compares.

    The file has either the key `runs` or the key `grid`. Every experiment starts from random weights. No
    baselines are trained. At most 100 trainings, which are experiments times seeds, fit in one file.
    """

    name: FolderName = Field(
        description="Name of the comparison. Its results are in the folder `comparisons/<name>` of the lake."
    )
    runs: list[ExperimentRun] | None = Field(
        default=None, description="The experiments, one after another. Null: the file has the key `grid`."
    )
    grid: dict[str, list[Any]] | None = Field(
        default=None,
        description="Maps dotted keys in the sections `model` and `train` to lists of values. There is one "
        "experiment for each combination of values. Null: the file has the key `runs`.",
    )
    repeat_seeds: Annotated[list[Seed], Field(min_length=1)] | None = Field(
        default=None,
        description="Seeds: every experiment is trained once with each of them as `train.seed`. Null: once, "
        "with `train.seed` of the configuration.",
    )
    choose_by: Measure = Field(
        default="log_loss",
        description="Measure on the validation split that decides which experiment is the best. `auc`: the "
        "largest area under the ROC curve. `log_loss`: the smallest mean log loss. `normalized_entropy`: the "
        "smallest log loss, divided by that of the click rate as the prediction of every row. The last two "
        "need `train.loss: bce`. Measures of lists, such as NDCG, are not available on the validation split.",
    )

    @model_validator(mode="after")
    def _runs_or_grid(self) -> Experiments:
        if (self.runs is None) == (self.grid is None):
            raise ValueError("the file needs exactly one of the keys `runs` and `grid`")
        return self

    @model_validator(mode="after")
    def _not_empty(self) -> Experiments:
        if self.runs is not None and not self.runs:
            raise ValueError("runs is empty: list at least one experiment, such as {name: base}")
        if self.grid is not None and not self.grid:
            raise ValueError("grid is empty: write at least one key with a list of values")
        for key, values in (self.grid or {}).items():
            if not values:
                raise ValueError(f"grid has no values for {key}, so it has no combinations: list some values")
        return self

    @model_validator(mode="after")
    def _distinct(self) -> Experiments:
        _require_distinct("repeat_seeds", self.repeat_seeds or [])
        _require_distinct("runs has names that", [run.name for run in self.runs or []])
        for key, values in (self.grid or {}).items():
            _require_distinct(f"grid: the values of {key}", values)
        return self


def _require_distinct(what: str, values: list[Any]) -> None:
    """Raises ValueError if a value occurs twice. 1 and true count as different, and 1 and 1.0 as equal."""
    seen: list[Any] = []
    for value in values:
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in seen):
            raise ValueError(f"{what} occur twice: {value!r}; remove one of the two")
        seen.append(value)
