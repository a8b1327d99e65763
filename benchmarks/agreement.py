"""Checks that two contenders of the ETL benchmark wrote the same table, by comparing checksums.

The checksums do not depend on the order of rows or files. They are computed for each day:

* the number of rows;
* a checksum of complete rows (label and all ids), which changes if an id moves to another row;
* a checksum of each categorical column;
* for each dense column, the sum of the values, the sum of their squares, and the sum of the values weighted
  by the checksum of their row. The weighted sum changes if a value moves to another row.

Checksums of ids are computed in two ways:

* `exact`: from the ids themselves. They are equal only if both contenders order values of equal counts by
  value;
* `without_ties`: each id is replaced by the number of its occurrences in the train days. The order of values
  with equal counts then has no effect. This is used for peers that do not define this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.contender import CATEGORICAL, COLUMNS, DENSE, FIRST_ID, LABEL, Day, Outcome

# For n rows of values in [0, ~20]. float32 rounds a value by 6e-8 of itself, and normalised values by more.
DENSE_TOLERANCE = 2e-6

Ids = NDArray[np.int64]
_GAMMA, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


class Disagreement(Exception):
    """An error: two contenders wrote different tables, so their times are not comparable."""


@dataclass(frozen=True)
class Summary:
    """Checksums and sums of the table that a contender wrote. Equal tables have equal summaries.

    Attributes:
        rows: maps each date to its number of rows.
        exact: maps each pair (date, column) to the checksum of the ids themselves. The key (date, "whole
            rows") has the checksum of complete rows.
        without_ties: the same after each id has been replaced by its number of occurrences.
        dense: maps each pair (date, "column: kind of sum") to a sum of the dense values.
    """

    rows: Mapping[str, int]
    exact: Mapping[tuple[str, str], int]
    without_ties: Mapping[tuple[str, str], int]
    dense: Mapping[tuple[str, str], float]


def summarise(days: Sequence[Day], outcome: Outcome) -> Summary:
    """Reads the files of a contender and returns their summary.

    Args:
        days: all days of the log.
        outcome: the report of the contender, with the files of each day and the normalised columns.

    Raises:
        Disagreement: a column is missing, has nulls, or has another type than int32 (ids) or float32 (label,
            dense). Also raised if a column that the contender reports as normalised does not have mean 0 and
            variance 1 over the train days.
    """
    frequency = _train_frequencies(days, outcome)
    rows: dict[str, int] = {}
    exact: dict[tuple[str, str], int] = {}
    without_ties: dict[tuple[str, str], int] = {}
    dense: dict[tuple[str, str], float] = {}
    moments = dict.fromkeys(outcome.normalised, np.zeros(3))
    for day in days:
        for table in _tables(outcome.files[day.dt]):
            count = table.num_rows
            rows[day.dt] = rows.get(day.dt, 0) + count
            hashes = [np.zeros(count, np.uint64), np.zeros(count, np.uint64)]
            label = table[LABEL].to_numpy().astype(np.int64)
            for name, ids in [(LABEL, label), *((name, table[name].to_numpy()) for name in CATEGORICAL)]:
                kept = ids.astype(np.int64)
                tied = kept if name == LABEL else frequency[name][kept]
                for place, (values, sums) in enumerate(((kept, exact), (tied, without_ties))):
                    cells = _mix(values, name)
                    sums[day.dt, name] = _add(sums.get((day.dt, name), 0), cells)
                    hashes[place] = _mix_in(hashes[place], cells)
            for sums, whole in zip((exact, without_ties), hashes, strict=True):
                sums[day.dt, "whole rows"] = _add(sums.get((day.dt, "whole rows"), 0), whole)
            weight = (hashes[1] >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0  # in [-1, 1)
            for name in DENSE:
                values = table[name].to_numpy().astype(np.float64)
                if name in outcome.normalised:
                    if day.train:
                        moments[name] = moments[name] + [count, values.sum(), (values**2).sum()]
                    mean, deviation = outcome.normalised[name]
                    values = values * deviation + mean
                for what, number in (
                    ("sum", values.sum()),
                    ("squares", (values**2).sum()),
                    ("in their rows", (values * weight).sum()),
                ):  # fmt: skip
                    key = (day.dt, f"{name}: {what}")
                    dense[key] = dense.get(key, 0.0) + float(number)
    _check_moments(moments)
    return Summary(rows, exact, without_ties, dense)


def compare(ours: Summary, theirs: Summary, peer: str, ties: bool = True) -> None:
    """Raises Disagreement if the tables of two contenders differ. The message names the first difference.

    Args:
        ours: the summary of our table.
        theirs: the summary of the peer's table.
        peer: name of the peer, used in messages.
        ties: True if values of equal counts must have the same ids in both tables.
    """
    if ours.rows != theirs.rows:
        raise Disagreement(f"{peer}: it wrote {dict(theirs.rows)} rows per day, we wrote {dict(ours.rows)}")
    kind = "exact" if ties else "without_ties"
    mine, other = getattr(ours, kind), getattr(theirs, kind)
    different = sorted(key for key in mine if mine[key] != other.get(key))
    if different:
        raise Disagreement(
            f"{peer}: ids differ in {len(different)} of {len(mine)} pairs (day, column), such as {different[:3]}"
        )
    for key, value in ours.dense.items():
        scale = ours.rows[key[0]] * 10.0
        if not abs(value - theirs.dense[key]) <= DENSE_TOLERANCE * scale:
            raise Disagreement(
                f"{peer}: dense values differ: {key} is {theirs.dense[key]!r}, ours is {value!r}"
            )


def _tables(files: Sequence[str]) -> Iterator[pa.Table]:
    wanted = {
        LABEL: pa.float32(),
        **dict.fromkeys(DENSE, pa.float32()),
        **dict.fromkeys(CATEGORICAL, pa.int32()),
    }
    for path in files:
        with pq.ParquetFile(path) as file:  # the file's own schema, without columns from folder names
            schema = file.schema_arrow
            for name, kind in wanted.items():
                if name not in schema.names or schema.field(name).type != kind:
                    raise Disagreement(
                        f"{path}: column {name} must be {kind}; the file has the columns {schema.names}"
                    )
            table = file.read(columns=list(COLUMNS))
        nulls = {name: table[name].null_count for name in wanted if table[name].null_count}
        if nulls:
            raise Disagreement(f"{path}: no column may have nulls, but there are nulls in {nulls}")
        yield table


def _train_frequencies(days: Sequence[Day], outcome: Outcome) -> dict[str, Ids]:
    """Returns one array per column. Its element i is the number of occurrences of id i in the train days.

    For reserved ids, the element is a negative number that differs between these ids.
    """
    counts: dict[str, Ids] = {name: np.zeros(FIRST_ID, np.int64) for name in CATEGORICAL}
    for day in days:
        for table in _tables(outcome.files[day.dt]):
            for name in CATEGORICAL:
                ids = table[name].to_numpy()
                if len(ids) and ids.min() < 1:
                    raise Disagreement(f"{name} holds the id {ids.min()}; ids must be at least 1")
                size = max(len(counts[name]), int(ids.max(initial=0)) + 1)
                added = np.bincount(ids, minlength=size) * int(day.train)
                added[: len(counts[name])] += counts[name]
                counts[name] = added
    for occurrences in counts.values():
        occurrences[:FIRST_ID] = -1 - np.arange(FIRST_ID)
    return counts


def _check_moments(moments: Mapping[str, NDArray[np.float64]]) -> None:
    for name, (count, total, squares) in moments.items():
        mean, variance = total / count, squares / count - (total / count) ** 2
        if abs(mean) > 1e-4 or abs(variance - 1) > 1e-3:
            raise Disagreement(
                f"{name} is not normalised over the train days: its mean must be 0 and is {mean}, its variance "
                f"must be 1 and is {variance}"
            )


def _mix(values: Ids, name: str) -> NDArray[np.uint64]:
    """Returns a 64-bit hash of each value, which depends on the column `name`.

    The hash is the last step (finaliser) of SplitMix64, shortened by a round.
    """
    column = np.uint64(COLUMNS.index(name) * int(_MIX) % 2**64)
    state = (values.astype(np.uint64) + np.uint64(1)) * _GAMMA + column
    state = (state ^ (state >> np.uint64(30))) * _MIX
    return np.asarray(state ^ (state >> np.uint64(31)))


def _mix_in(row: NDArray[np.uint64], cells: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.asarray((row ^ (row >> np.uint64(29))) * _MIX + cells)


def _add(total: int, cells: NDArray[np.uint64]) -> int:
    """Returns the sum of `total` and all elements of `cells`, modulo 2^64."""
    return (total + int(cells.sum(dtype=np.uint64))) % 2**64
