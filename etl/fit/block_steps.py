"""The inputs of steps that are measured from blocks of training rows, in tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.fit.fit_inputs import RowBatch, TrainingBlocks
from etl.ops.array_statistics import GroupedRows
from etl.ops.base import Operator, Type
from etl.ops.doubles import as_doubles
from etl.ops.tables import LocalTables
from etl.raw.value_text import joined_array, text_array
from etl.workflow.fitted_chains import FittedChain, RowPlace
from etl.workflow.row_values import RowValues, decoded, row_values
from storage.feature_spec import LABEL


@dataclass(frozen=True)
class BlockStep:
    """A step that needs statistics of the training rows. Objects are pickled.

    Attributes:
        key: the name of the step in error messages, different for each step that is measured.
        before: the part of the step's chain before the step, already fitted.
        inputs: the inputs of the step: values of `before`.
        kind: the type of the first input.
    """

    key: str
    before: FittedChain
    operator: Operator
    inputs: tuple[str, ...]
    kind: Type

    @property
    def raw_columns(self) -> frozenset[str]:
        """Returns the raw columns that the statistics of the step depend on."""
        label = {LABEL} if self.operator.needs == "groups" else set()
        return frozenset({*self.before.inputs, *self.operator.reads(), *label})


@dataclass(frozen=True)
class StepValues:
    """The n training rows of a batch, and the inputs of one step for these rows.

    Attributes:
        numbers: returns numeric raw columns of the batch (GroupedRows.numbers).
    """

    step: BlockStep
    batch: RowBatch
    values: tuple[RowValues, ...]
    numbers: Callable[[str], tuple[np.ndarray, np.ndarray]]

    def by_key(self) -> tuple[pa.Array, GroupedRows]:
        """Divides the rows by the key that the inputs form.

        Returns:
            (keys, rows): different keys as strings, and the rows with a key. Each key has a row.
        """
        first = self.values[0]
        if len(self.values) == 1:
            texts, codes = text_array(first.distinct), first.codes
        else:
            texts, codes = joined_array([decoded(value.plain) for value in self.values]), None
        coded = texts.dictionary_encode()
        groups = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        if codes is not None:
            groups = groups[codes.to_numpy(zero_copy_only=False)]
        rows = np.flatnonzero(groups >= 0)
        groups = groups[rows]
        present = np.flatnonzero(np.bincount(groups, minlength=len(coded.dictionary)))
        compact = np.zeros(len(coded.dictionary), np.int64)
        compact[present] = np.arange(len(present))
        keys = coded.dictionary.take(pa.array(present))
        return keys, self._grouped(rows, compact[groups], len(present))

    def all_rows(self) -> GroupedRows:
        """Returns all rows of the batch as one group."""
        rows = np.arange(len(self.batch.row_ids))
        return self._grouped(rows, np.zeros(len(rows), np.int64), 1)

    def _grouped(self, rows: np.ndarray, groups: np.ndarray, size: int) -> GroupedRows:
        return GroupedRows(self.numbers, self.batch.row_ids, rows, groups, size)


@dataclass(frozen=True)
class _Numbers:
    """Returns numeric raw columns of a batch, as GroupedRows.numbers. Each is converted once."""

    columns: Mapping[str, pa.Array]

    @cached_property
    def _converted(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {}

    def __call__(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        if name not in self._converted:
            values = row_values(self.columns[name], encode=False)
            numbers, nulls = as_doubles(values.distinct)
            if values.codes is not None:
                codes = values.codes.to_numpy(zero_copy_only=False)
                numbers, nulls = numbers[codes], nulls[codes]
            self._converted[name] = numbers, nulls
        return self._converted[name]


def read_steps(
    blocks: TrainingBlocks, steps: Sequence[BlockStep], tables: LocalTables, task: int
) -> Iterator[list[StepValues]]:
    """Yields, for each batch of a task, the inputs of all steps. Batches without rows are left out.

    Values that several steps of one chain need are computed once.
    """
    wanted = frozenset().union(*(step.raw_columns for step in steps))
    for batch in blocks.read(task, wanted):
        if not len(batch.row_ids):
            continue
        of_chain: dict[int, dict[str, RowValues]] = {}
        place, numbers = RowPlace(batch.row_ids, batch.dt), _Numbers(batch.columns)
        inputs = []
        for step in steps:
            chain = step.before
            if id(chain) not in of_chain:
                arrays = [batch.columns[name] for name in chain.inputs]
                of_chain[id(chain)] = chain.values(arrays, tables, place)
            values = of_chain[id(chain)]
            inputs.append(StepValues(step, batch, tuple(values[name] for name in step.inputs), numbers))
        yield inputs


def counted_texts(values: RowValues) -> tuple[pa.Array, np.ndarray, int]:
    """Counts values, or the elements of lists.

    Returns:
        (texts, counts, nulls): k texts without null, how often each occurs, shape (k,), and how often null
            occurs. A text may occur more than once. Numbers can be parsed back exactly; -0.0 is counted as
            0.0.
    """
    distinct, counts = values.counts()
    if pa.types.is_floating(distinct.type):
        distinct = pc.add(distinct, 0.0)
    nulls = 0
    if distinct.null_count:
        valid = distinct.is_valid().to_numpy(zero_copy_only=False)
        nulls = int(counts[~valid].sum())
        distinct, counts = distinct.filter(pa.array(valid)), counts[valid]
    return text_array(distinct), counts, nulls
