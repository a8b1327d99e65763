"""TargetEncoding: replaces a key by the smoothed, out-of-fold mean of the target in rows with this key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from conf.errors import DataError
from conf.lazy_imports import F
from etl.ops.arrays import as_doubles
from etl.ops.base import KEYS, Number, Operator, Step, Type
from etl.ops.keyed import GROUP, KeyedFitted, bind_keys, exact_sum, table_name
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import GroupedRows, GroupParts, Need, Statistics, doubles_of_sums
from etl.ops.xxhash64 import xxhash64_of_longs
from etl.raw.splits import DAY, SPLIT
from storage.feature_spec import LABEL, ROW_ID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def fold_of(folds: int) -> Column:
    """Returns the fold of a row: XXH64 of row_id, modulo `folds`. A row has the same fold in every run."""
    return F.pmod(F.xxhash64(F.col(ROW_ID).cast("bigint")), F.lit(folds).cast("bigint"))


def folds_of(row_ids: np.ndarray, folds: int) -> np.ndarray:
    """Returns the fold of each of n rows, shape (n,), as `fold_of` computes it from (n,) int64 row ids."""
    return np.mod(xxhash64_of_longs(row_ids), folds)


def smoothed(total: Column, count: Column, prior: Column, smoothing: float) -> Column:
    """Returns (total + smoothing * prior) / (count + smoothing), which is nearly `prior` for small counts."""
    return (total + prior * smoothing) / (count + smoothing)


@dataclass(frozen=True)
class FittedTargetEncoding(KeyedFitted):
    """The fitted step of the operator `target_encoding`."""

    name: ClassVar[str] = "target_encoding"
    out_of_fold: ClassVar[bool] = True
    folds: int = 5
    smoothing: float = 20.0
    prior: float = 0.0
    fold_priors: tuple[float, ...] = ()
    days: tuple[str, ...] = ()

    @classmethod
    def from_state(
        cls, inputs: Sequence[str], outputs: Sequence[str], state: Mapping[str, Any]
    ) -> FittedTargetEncoding:
        """Creates the fitted step from stored JSON values."""
        lists = {name: tuple(state[name]) for name in ("fold_priors", "days")}
        return cls(tuple(inputs), tuple(outputs), **{**state, **lists})

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns `rows`, joined with the table of sums by key, and one expression per output."""
        joined, of = self.join_table(rows, values, tables, tag)
        whole = smoothed(of("sum"), of("count"), F.lit(self.prior), self.smoothing)
        encoded = F.coalesce(whole, F.lit(self.prior))
        if DAY not in rows.columns:
            return joined, [encoded]
        fitted_row = F.col(DAY).isin(*self.days)
        if SPLIT in rows.columns:
            fitted_row = fitted_row & (F.col(SPLIT) == "train")
        out_of_fold, fold = F.lit(None).cast("double"), fold_of(self.folds)
        for index, prior in enumerate(self.fold_priors):
            rest = smoothed(
                of("sum") - of(f"sum_{index}"),
                of("count") - of(f"count_{index}"),
                F.lit(prior),
                self.smoothing,
            )
            out_of_fold = F.when(fold == index, F.coalesce(rest, F.lit(prior))).otherwise(out_of_fold)
        return joined, [F.when(fitted_row, out_of_fold).otherwise(encoded)]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        of = self.look_up(values, tables)
        total = pc.add(of("sum"), self.prior * self.smoothing)
        weight = pc.add(of("count").cast(pa.float64()), self.smoothing)
        # Without smoothing, a key whose targets are all null has a count of 0. Its result is the prior, and
        # the engine `sql` returns the same.
        means = pc.if_else(pc.fill_null(pc.greater(weight, 0.0), False), pc.divide(total, weight), self.prior)
        return [pc.fill_null(means, self.prior)]

    @property
    def training_days(self) -> tuple[str, ...]:
        """Returns the days whose rows the step was fitted on, as ISO dates."""
        return self.days

    def compute_training(
        self, values: Sequence[pa.Array], tables: LocalTables, row_ids: np.ndarray
    ) -> list[pa.Array]:
        """Returns the out-of-fold means of the target for rows on which the step was fitted."""
        of = self.look_up(values, tables)
        folds = folds_of(row_ids, self.folds)
        totals, no_total = as_doubles(of("sum"))
        counts, _ = as_doubles(of("count"))
        encoded = np.zeros(len(row_ids))
        for index, prior in enumerate(self.fold_priors):
            rows = np.flatnonzero(folds == index)
            inside, no_inside = as_doubles(of(f"sum_{index}", rows))
            weights = counts[rows] - as_doubles(of(f"count_{index}", rows))[0] + self.smoothing
            # Without smoothing, a key that is only in this fold has a weight of 0. Its result is the prior.
            has_mean = ~no_total[rows] & ~no_inside & (weights > 0)
            means = (totals[rows] - inside + prior * self.smoothing) / np.where(has_mean, weights, 1.0)
            encoded[rows] = np.where(has_mean, means, prior)
        return [pa.array(encoded)]


class TargetEncoding(Operator):
    """Replaces a key by the smoothed mean of `target` over the training rows with this key, out of fold.

    The result is (sum + smoothing * prior) / (count + smoothing). Here sum is the sum of `target` over the
    training rows with the key, and count is the number of these rows in which `target` is not null. The prior
    is the mean of `target` over all training rows. The method is from Micci-Barreca, "A preprocessing scheme
    for high-cardinality categorical attributes" (2001), except that here the weight of the prior is constant.

    The training rows are divided into folds. "Out of fold" means that the result for a training row is
    computed only from the training rows of the other folds. The prior is then the mean over these other
    folds. For a row that is not a training row, the result is computed from all training rows. If the key is
    null, or does not occur in the training rows from which the result is computed, the result is the prior.

    The fold of a row is floorMod(XXH64(row_id as 8 bytes, little endian, seed 42), `folds`). row_id is the
    position of the row in the log of its day. So rows of different days with the same row_id are in the same
    fold. If the section `negatives` is set, a drawn negative has its own row_id. It may therefore be in a
    different fold from the positive row for which it was drawn.

    Each column of the group is a separate key. With `joint: true`, all columns together form one key. Outputs
    are named `<key>_te`.

    | key  | target | out (folds=2, smoothing=0) of a training row in fold 0 |
    |------|--------|--------------------------------------------------------|
    | a    | 1      | mean of the target over the rows with a in fold 1      |
    | null | 1      | mean of the target over all rows in fold 1             |
    """

    name: ClassVar[str] = "target_encoding"
    page: ClassVar[str] = "keys"
    needs: ClassVar[Need] = "groups"
    takes: ClassVar[tuple[Type, ...]] = KEYS
    of_all_rows: ClassVar[bool] = True
    target: str = Field(default=LABEL, description="Numeric column whose mean is computed.")
    folds: Annotated[int, Field(ge=2, le=64)] = Field(
        default=5, description="Number of folds into which the training rows are divided."
    )
    smoothing: Annotated[Number, Field(ge=0)] = Field(
        default=20.0, description="Weight of the prior, as a number of rows. 0: the mean is not smoothed."
    )
    joint: bool = Field(
        default=False,
        description="Whether all columns of the group together form one key. If false, each column is a key.",
    )

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        return bind_keys(self, columns, self.joint, lambda key: {f"{key}_te": "float"})

    def reads(self) -> tuple[str, ...]:
        """Returns the raw columns that the statistics need in addition to the inputs of the step."""
        return () if self.target == LABEL else (self.target,)

    def groups(self, rows: DataFrame) -> DataFrame:
        """Returns a frame with one row per step and key.

        Its columns are the sum and the count of the target, in total and for each fold.
        """
        target = F.col(self.target).cast("double")
        fold = fold_of(self.folds)
        measures = {"sum": exact_sum(target), "count": F.count(target)}
        for index in range(self.folds):
            inside = F.when(fold == index, target)
            measures |= {f"sum_{index}": exact_sum(inside), f"count_{index}": F.count(inside)}
        return rows.groupBy(*GROUP).agg(*(measure.alias(name) for name, measure in measures.items()))

    def group_parts(self, rows: GroupedRows) -> GroupParts:
        """Returns, for some rows, the sum and the count of the target for each key and fold."""
        target = rows.column(self.target)
        _, nulls = rows.numbers(self.target)
        folds = folds_of(rows.row_ids[rows.rows][~nulls[rows.rows]], self.folds)
        of_folds = replace(target, groups=target.groups * self.folds + folds, size=target.size * self.folds)
        counts = of_folds.counts().reshape(-1, self.folds)
        sums = of_folds.sums()
        sums = sums.reshape(rows.size, self.folds, sums.shape[1])
        parts: dict[str, np.ndarray] = {}
        for index in range(self.folds):
            parts |= {f"sum_{index}": sums[:, index], f"count_{index}": counts[:, index : index + 1]}
        return GroupParts(rows.size, parts)

    def group_statistics(self, parts: GroupParts) -> dict[str, pa.Array]:
        """Returns the same statistics by key as `groups`. `parts` are merged partial statistics (GroupParts).

        The total of a key is the sum over its folds.
        """
        folds = range(self.folds)
        sums = sum((parts.sums[f"sum_{index}"] for index in folds[1:]), parts.sums["sum_0"])
        counts = sum((parts.count(f"count_{index}") for index in folds[1:]), parts.count("count_0"))
        table = {"sum": doubles_of_sums(sums), "count": pa.array(counts)}
        for index in folds:
            table[f"sum_{index}"] = doubles_of_sums(parts.sums[f"sum_{index}"])
            table[f"count_{index}"] = pa.array(parts.count(f"count_{index}"))
        return table

    def facts(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the mean of the target over all training rows and, for each fold, over all other folds."""
        if not whole:
            return {"prior": 0.0, "fold_priors": [0.0] * self.folds}
        if whole["sum"] is None:
            raise DataError(
                f"target_encoding cannot be fitted: {self.target} has values of 5e30 or more, or their sum "
                "is 5e30 or more",
                "choose another column as `target` of target_encoding",
            )
        prior = _mean(whole["sum"], whole["count"])
        fold_priors = [
            _mean(whole["sum"] - whole[f"sum_{i}"], whole["count"] - whole[f"count_{i}"])
            for i in range(self.folds)
        ]
        return {"prior": prior, "fold_priors": fold_priors}

    def fit(self, step: Step, statistics: Statistics) -> FittedTargetEncoding:
        """Returns the fitted step."""
        return FittedTargetEncoding(
            inputs=step.inputs,
            outputs=step.outputs,
            table=table_name(step),
            folds=self.folds,
            smoothing=float(self.smoothing),
            prior=statistics.facts["prior"],
            fold_priors=tuple(statistics.facts["fold_priors"]),
            days=tuple(statistics.facts["days"]),
        )


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0
