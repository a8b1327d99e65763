"""Fits a workflow on the rows of one table in memory, without a lake and without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError, DataError
from conf.types import FeatureGroup
from etl.fit.rounds import ChainRequest, fit_rounds, fit_without_statistics, plan_rounds, vocabulary_of
from etl.native.distinct_values import Lookup
from etl.operators.categorify import Categorify
from etl.ops import Operator, operator_digests, operator_from_config
from etl.ops.arrays import as_doubles
from etl.ops.base import LISTS, Step, Type
from etl.ops.keyed import KEY, table_name
from etl.ops.tables import VOCABULARY, LocalTables
from etl.ops.training_statistics import GroupedRows, Statistics
from etl.raw.text_values import joined_array, text_array
from etl.statistics.count_statistics import VOCABULARY_SCHEMA
from etl.statistics.id_rule import IdRule, assign_ids_of_column
from etl.statistics.moments import MeasuredStatistic, quantiles_of_counts, sums_of_counts
from etl.workflow.chains import Chain, RowPlace, canonical_groups, chain_description, decoded
from etl.workflow.feature_plan import plan_features
from etl.workflow.fitted_workflow import LocalWorkflow, fitted_features
from etl.workflow.raw_values import column_types, raw_values, require_columns
from storage.feature_spec import LABEL, FeatureSpec
from storage.manifest import digest_of

# The digest of every workflow version contains this number. Increase it if the meaning of an operator
# changes.
_FORMAT = 1


def columns_of(groups: Sequence[FeatureGroup], label: str) -> tuple[list[str], list[str]]:
    """Returns two lists: the raw columns that features need, and the additional columns that a fit reads.

    The columns of the second list are used only to compute statistics. They include the label if an operator
    needs statistics by key.

    Raises:
        ConfigError: an operator is unknown, or cannot be fitted on a table in memory.
    """
    operators = [operator_from_config(entry) for group in groups for entry in group.ops]
    _require_fit(operators)
    inputs = list(dict.fromkeys(name for group in groups for name in group.columns))
    read = list(dict.fromkeys(name for operator in operators for name in operator.reads()))
    read += [label] if any(operator.needs == "groups" for operator in operators) else []
    return inputs, [name for name in read if name not in inputs]


def fit_frame(
    rows: pa.Table, groups: Sequence[FeatureGroup], types: Mapping[str, Type], label: str
) -> LocalWorkflow:
    """Returns a workflow that is fitted on all rows of a table. Its tables are in memory.

    build_features would fit the same values on a single training day with these rows, where the `row_id` of
    each row is its position. The version of the workflow is a digest of the features and all fitted values.

    Args:
        rows: a table with the columns of `columns_of`. The table may lack the column with the label.
        groups: the section `features` of the configuration.
        types: maps raw columns to their types. Any other column has the type of its values.
        label: the name of the column with the label.

    Raises:
        ConfigError: an operator does not accept a column, an operator cannot be fitted on a table in memory,
            or a feature reads the label.
        DataError: the table has no rows, a column is missing, a value does not have the type of its column,
            or the statistics of a column cannot be computed.
    """
    inputs, others = columns_of(groups, label)
    require_columns(rows, inputs)
    if not len(rows):
        raise DataError(
            "the frame has no rows, but a fit needs at least one row", "pass a frame with the training rows"
        )
    columns = column_types(rows, [*inputs, *(name for name in others if name != label)], types)
    if label in others and label in rows.column_names:
        columns[label] = "float"
    chains, names = plan_features(groups, columns, label)
    statistics = FrameStatistics(FrameRows(rows, raw_values(rows, _types(chains)), {LABEL: label}))
    rounds = plan_rounds(chains, extends=False, has_value_counts=False)
    fitted = fit_rounds(chains, rounds, {"rows": statistics}, fit_without_statistics)
    features = fitted_features(chains, names, fitted, {})
    tables = statistics.tables()
    extensions = operator_digests(step.operator.name for chain in chains for step in chain.steps)
    version = digest_of(
        {
            "frame": _FORMAT,
            "features": [group.model_dump(mode="json") for group in canonical_groups(groups)],
            "chains": [chain.to_json() for chain in fitted],
            "tables": tables.digests(),
            **({"extensions": extensions} if extensions else {}),
        }
    )
    return LocalWorkflow(
        version=version,
        parent=None,
        spec=FeatureSpec(features, (), version),
        chains=fitted,
        descriptions=tuple(chain_description(chain) for chain in chains),
        counted={},
        vocabularies=statistics.facts,
        local=tables,
    )


def _types(chains: Sequence[Chain]) -> dict[str, Type]:
    return {name: kind for chain in chains for name, kind in zip(chain.inputs, chain.types, strict=True)}


def _require_fit(operators: Sequence[Operator]) -> None:
    """Raises ConfigError if an operator reads a table other than the frame."""
    external = sorted({operator.name for operator in operators if operator.needs == "external"})
    if external:
        raise ConfigError(
            f"the operators {external} read a table outside the frame, so they cannot be fitted on a frame",
            "join this table with the frame before the fit, and use its columns",
        )


# The classes below compute statistics of training rows that are in the memory of this process, without Spark.

# The day of all rows, in days since 1970-01-01. All rows of a frame belong to this day, because frames have
# no days.
NO_DAY = 0


@dataclass(frozen=True)
class FrameRows:
    """All training rows, in the memory of this process.

    Attributes:
        table: n rows, as the caller passed them.
        raw: maps each raw column that a chain reads to its n values (etl.workflow.raw_values).
        label: maps LABEL, the name of the label in feature tables, to the column of `table` that contains the
            label.
    """

    table: pa.Table
    raw: Mapping[str, pa.Array]
    label: Mapping[str, str]

    @property
    def row_ids(self) -> np.ndarray:
        """Returns the positions of the rows, shape (n,), int64."""
        return np.arange(len(self.table))

    def numbers(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns a numeric column as (n,) float64, and an (n,) bool array that is true for nulls.

        Raises:
            DataError: the rows lack the column, or a value is not a number.
        """
        column = self.label.get(name, name)
        kind = self.table.schema.field(column).type if column in self.table.column_names else None
        is_int = kind is not None and pa.types.is_integer(kind)
        converted = raw_values(self.table, {column: "int" if is_int else "float"})[column]
        numbers, nulls = as_doubles(converted)
        return numbers, nulls


@dataclass(frozen=True)
class _Inputs:
    """A step that needs statistics, with one array of n values for each input."""

    request: ChainRequest
    step: Step
    values: tuple[pa.Array, ...]

    @property
    def key(self) -> str:
        return self.request.key(self.step)

    @property
    def operator(self) -> Operator:
        return self.step.operator

    @property
    def cardinality(self) -> int | None:
        return self.request.cardinality(self.step)

    def counted(self) -> tuple[pa.Array, np.ndarray]:
        """Returns the k values (or elements of lists) of the first input without nulls, and k counts of 1."""
        values = self.values[0]
        if self.request.types[self.step.inputs[0]] in LISTS:
            values = pc.list_flatten(values)
        values = values.drop_null()
        return values, np.ones(len(values), np.int64)


@dataclass(frozen=True)
class FrameStatistics:
    """A source of statistics (StatisticsSource) that reads rows in memory.

    It also collects the tables in which fitted steps look up values.

    Attributes:
        facts: maps each vocabulary to its size and counts, as etl.statistics.count_statistics computes them.
    """

    rows: FrameRows
    facts: dict[str, dict[str, int]] = field(default_factory=dict)
    _vocabularies: dict[str, pa.Table] = field(default_factory=dict)
    _keyed: dict[str, pa.Table] = field(default_factory=dict)

    def tables(self) -> MemoryTables:
        """Returns the tables that have been collected so far."""
        return MemoryTables(
            latest=NO_DAY, vocabularies=dict(self._vocabularies), keyed_tables=dict(self._keyed)
        )

    def measure(self, requests: Sequence[ChainRequest]) -> dict[str, Statistics]:
        """Computes the statistics of all requested steps, as StatisticsSource.measure describes."""
        tables, statistics = self.tables(), {}
        vocabularies: dict[str, list[_Inputs]] = {}
        for inputs in self._inputs(requests, tables):
            if inputs.operator.needs == "counts":
                vocabularies.setdefault(vocabulary_of(inputs.step), []).append(inputs)
            else:
                statistics[inputs.key] = self._measure(inputs)
        for name, steps in vocabularies.items():
            highest = self._count(name, steps)
            statistics |= {inputs.key: Statistics(cardinality=highest + 1) for inputs in steps}
        return statistics

    def _inputs(self, requests: Sequence[ChainRequest], tables: MemoryTables) -> Iterator[_Inputs]:
        for request in requests:
            arrays = [self.rows.raw[name] for name in request.before.inputs]
            values = request.before.values(arrays, tables, RowPlace(self.rows.row_ids))
            for step in request.steps:
                yield _Inputs(request, step, tuple(decoded(values[name].plain) for name in step.inputs))

    def _measure(self, inputs: _Inputs) -> Statistics:
        """Computes the statistics of a step that needs no vocabulary."""
        operator, kind = inputs.operator, inputs.request.types[inputs.step.inputs[0]]
        values: dict[str, Any] = {"cardinality": inputs.cardinality}
        if operator.needs == "groups":
            values |= self._measure_groups(inputs)
        elif operator.needs == "aggregates":
            values["aggregates"] = operator.aggregate_values(inputs.values[0], kind)
        elif operator.needs == "quantiles":
            numbers_of_shares = quantiles_of_counts(lambda: [inputs.counted()], operator.probabilities())
            probabilities = operator.probabilities() if numbers_of_shares else ()
            values["quantiles"] = dict(zip(probabilities, numbers_of_shares, strict=True))
        elif operator.needs == "mergeable":
            measured = MeasuredStatistic(inputs.key, operator.statistic(kind), kind)
            values["merged"] = measured.result(measured.measure(*inputs.counted()))
        else:
            present, counts = inputs.counted()
            numbers = present.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            values["moments"] = sums_of_counts(inputs.key, numbers, counts).moments()
        return Statistics(**values)

    def _measure_groups(self, inputs: _Inputs) -> dict[str, Any]:
        """Computes and stores the keyed table of a step.

        Returns the name of the table, and the values of `Operator.facts`, which the fit of the step needs.
        """
        coded = joined_array(inputs.values).dictionary_encode()
        rows = np.flatnonzero(coded.is_valid().to_numpy(zero_copy_only=False))
        groups = coded.indices.drop_null().to_numpy().astype(np.int64)
        grouped = GroupedRows(self.rows.numbers, self.rows.row_ids, rows, groups, len(coded.dictionary))
        statistics = inputs.operator.group_values(grouped)
        name = table_name(inputs.step)
        self._keyed[name] = pa.table({KEY: coded.dictionary, **statistics}).sort_by(KEY)
        facts: dict[str, Any] = {}
        if inputs.operator.of_all_rows:
            everything = np.zeros(len(self.rows.table), np.int64)
            all_rows = GroupedRows(self.rows.numbers, self.rows.row_ids, self.rows.row_ids, everything, 1)
            whole = {name: array[0].as_py() for name, array in inputs.operator.group_values(all_rows).items()}
            facts = inputs.operator.facts(whole)
        return {"table": name, "facts": {**facts, "days": []}}

    def _count(self, name: str, steps: Sequence[_Inputs]) -> int:
        """Builds and stores the vocabulary that `steps` share. Returns the highest id; 0 if there is none."""
        operator = cast(Categorify, steps[0].operator)
        rule = IdRule(operator.least(name), operator.first_id, operator.max_size)
        if operator.values is None:
            entries = assign_ids_of_column(_counted_entries(steps), rule)
        else:
            entries = _fixed_entries(operator)
        has_id = pc.is_valid(entries["id"])
        known, rare = entries.filter(has_id).sort_by("id"), entries.filter(pc.invert(has_id))
        column = pa.array([name]).take(pa.array(np.zeros(len(known), np.int64)))
        named = known.add_column(0, "column", column).cast(VOCABULARY_SCHEMA).combine_chunks()
        self._vocabularies[name] = named
        highest = pc.max(known["id"]).as_py() or 0
        self.facts[name] = {
            "entries": len(known),
            "highest": highest,
            "occurrences": pc.sum(known["count"]).as_py() or 0,
            "rare_values": len(rare),
            "rare_occurrences": pc.sum(rare["count"]).as_py() or 0,
        }
        return highest


def _counted_entries(steps: Sequence[_Inputs]) -> pa.Table:
    """Returns a table (value, id, count, last_seen) of the steps' distinct values. All ids are null."""
    counted = [inputs for inputs in steps if cast(Categorify, inputs.operator).counts]
    texts = [text_array(inputs.counted()[0]) for inputs in counted]
    counts = pc.value_counts(pa.chunked_array(texts, pa.string()))
    return _entries(counts.field("values"), counts.field("counts"), pa.nulls(len(counts), pa.int32()))


def _fixed_entries(operator: Categorify) -> pa.Table:
    """Returns the entries of a vocabulary whose values the configuration lists."""
    values = pa.array(operator.values, pa.string())
    ids = np.arange(len(values), dtype=np.int32) + operator.first_id
    return _entries(values, pa.array(np.zeros(len(values), np.int64)), pa.array(ids, pa.int32()))


def _entries(values: pa.Array, counts: pa.Array, ids: pa.Array) -> pa.Table:
    days = pa.array(np.full(len(values), NO_DAY, np.int32))
    return pa.table({"value": values, "id": ids, "count": counts, "last_seen": days})


# The class below holds the tables of a workflow that was fitted on a frame, in the memory of this process.


@dataclass(frozen=True)
class MemoryTables(LocalTables):
    """The tables of a workflow version in memory. Unlike LocalTables, the object reads no files.

    Attributes:
        vocabularies: maps the name of each vocabulary to its entries (column, value, id, count, last_seen),
            sorted by id.
        keyed_tables: all other tables, by name. Each of them has a column `key`.
    """

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vocabularies: Mapping[str, pa.Table] = field(default_factory=dict)
    keyed_tables: Mapping[str, pa.Table] = field(default_factory=dict)
    _lookups: dict[str, Lookup] = field(default_factory=dict, repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        """Returns the names of the tables."""
        return [*([VOCABULARY] if self.vocabularies else []), *self.keyed_tables]

    def vocabulary(self, name: str, max_age_days: int | None = None) -> tuple[Lookup, np.ndarray]:
        """Returns the `Lookup` of a vocabulary's n values, and an (n,) int32 array with their ids.

        All values were last seen on the last training day, so `max_age_days` removes none.
        """
        entries = self.vocabularies[name]
        return self._lookup(f"{VOCABULARY}/{name}", entries["value"]), entries["id"].to_numpy()

    def keyed(self, name: str) -> tuple[Lookup, pa.Table]:
        """Returns a `Lookup` that finds the row with a key in the table `name`, and this table."""
        table = self.keyed_tables[name]
        return self._lookup(name, table[KEY]), table

    def entries(self, names: Sequence[str], ids: Sequence[int]) -> pa.Table:
        """Returns the entries (column, id, value) of the vocabularies `names` whose ids are in `ids`."""
        wanted = pa.array(ids, pa.int32())
        tables = [self.vocabularies[name].select(["column", "id", "value"]) for name in names]
        return pa.concat_tables(table.filter(pc.is_in(table["id"], wanted)) for table in tables)

    def parts(self, name: str) -> Iterator[pa.Table]:
        """Yields the rows of a table of the version.

        If the table is `vocabulary`, each vocabulary is yielded separately. Any other table is yielded whole.
        """
        yield from self.vocabularies.values() if name == VOCABULARY else [self.keyed_tables[name]]

    def digests(self) -> dict[str, str]:
        """Returns a digest of the values of each table, by the name of the table or vocabulary."""
        tables = {f"{VOCABULARY}/{name}": table for name, table in self.vocabularies.items()}
        return {name: _digest(table) for name, table in {**tables, **self.keyed_tables}.items()}

    def _lookup(self, name: str, values: pa.ChunkedArray) -> Lookup:
        if name not in self._lookups:
            self._lookups[name] = Lookup(values.combine_chunks())
        return self._lookups[name]


def _digest(table: pa.Table) -> str:
    digest = sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"{name} {column.type} {len(column)}\0".encode())
        if pa.types.is_string(column.type):
            digest.update(pc.binary_length(column).to_numpy().tobytes())
            digest.update("".join(column.to_pylist()).encode())
        else:
            digest.update(column.is_null().to_numpy().tobytes())
            digest.update(pc.fill_null(column, 0).to_numpy().tobytes())
    return digest.hexdigest()[:16]
