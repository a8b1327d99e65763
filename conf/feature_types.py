"""The typed configuration of features: groups of columns, scopes, and the workflow."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from conf.raw_types import Names, Strict

OperatorEntry = str | dict[str, dict[str, Any] | None]
Scope = Literal["user", "item", "pair", "context"]
FeatureKind = Literal["dense", "categorical", "multi_hot"]


class FeatureGroup(Strict):
    """Columns that go through one chain of operators. The outputs of the chain become features."""

    columns: Annotated[Names, Field(min_length=1)] = Field(
        description="Raw columns, by name. Ranges such as `I{1..13}` are expanded."
    )
    kind: FeatureKind = Field(
        description="`dense`: a number. `categorical`: one id. `multi_hot`: a list of ids."
    )
    ops: list[OperatorEntry] = Field(
        description="Operators in order. Each operator is written as `name` or `{name: {parameter: value}}`; "
        "docs/operators describes all operators."
    )


class Scopes(Strict):
    """The scopes of features: a feature depends on the user, on the item, or on neither (the context).

    A feature that is in none of the lists has the scope `pair`: its value may be different for every pair of
    user and item.
    """

    user: Names = Field(default=[], description="Features that depend only on the user.")
    item: Names = Field(default=[], description="Features that depend only on the item.")
    context: Names = Field(
        default=[],
        description="Features that depend neither on the user nor on the item, such as the hour of the day "
        "or the device. For lists, `score.context` gives the raw values of these features.",
    )


class WorkflowConfig(Strict):
    """Settings that decide how build_features gets the fitted workflow, and which engine applies it."""

    engine: Literal["auto", "sql", "arrow"] = Field(
        default="auto",
        description="`sql` fits workflows and looks up ids with Spark expressions and joins, which RAPIDS "
        "can run on a GPU. `arrow` does so in Python workers on Arrow batches, which is faster, also where "
        "there is a GPU (docs/gpu.md). `auto` is `arrow`. Both engines give the same rows, and parse logs in "
        "tasks. With `auto`, a job that Python and not spark-submit has started on one machine reads and "
        "prepares logs in processes of its own, and starts a JVM only for what needs it (docs/roads.md). "
        "`arrow` reads logs in the Python workers of Spark in any case.",
    )
    mode: Literal["auto", "fit", "extend", "apply", "retrain"] = Field(
        default="auto",
        description="`fit`: a new workflow is fitted to the train days of this run. `extend`: the values of "
        "new train days are added to the champion's workflow. `apply`: the champion's workflow is used "
        "unchanged. `retrain`: as `extend`, but as `fit` if there is no champion yet or if `train.retrain` "
        "requires a fresh start. `auto`: as `apply`, but as `fit` if there is no champion yet.",
    )
