"""Generates a click log in Criteo's layout: a label, 13 integers and 26 hexadecimal categorical columns.

Nightrank has another generator (etl/synthetic), whose clicks a model can predict. But all except two of its
columns have at most 20 values, which is too few to measure the work on vocabularies. The columns of the
generator in this file have as many values as those of Criteo's log:

* A categorical column has as many possible values as the same column of Criteo's Kaggle log has distinct
  values in its 45.8 million rows, as facebookresearch/dlrm counts them. The rank r of a value is drawn from
  Zipf's law with exponent 1 in its continuous form: P(r) = log((r + 1) / r) / log(n + 1), where n is the
  number of possible values. The number of distinct values therefore grows with the number of rows, as in
  Criteo's log.
* A value is written as 8 hexadecimal digits: its rank, mapped to a 32-bit number that looks random. Fields
  are empty as often as in Criteo's log.
* Integers are log-normal with long tails, as in Criteo's log. I2 has negative values. A quarter of the rows
  are clicks.

Columns are independent of each other. No row is malformed, because some peers cannot quarantine rows. Each
file depends only on the seed, the day and the number of rows. A log is generated once, in a folder whose name
contains these parameters.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks.contender import CATEGORICAL, DENSE
from etl.synthetic.lines import hex_tokens

FORMAT = 1  # part of a log's name: raise it when the bytes change
FIRST_DAY = date(2026, 1, 1)
CLICK_SHARE = 0.25
_BLOCK_ROWS = 65_536

# Distinct values of C1 to C26 in Criteo's Kaggle log.
CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
# Share of empty fields, rounded.
_EMPTY_CATEGORICAL = {3: 0.03, 4: 0.03, 6: 0.12, 12: 0.03, 16: 0.03, 19: 0.44, 20: 0.44, 21: 0.03, 22: 0.76,
                      24: 0.03, 25: 0.44, 26: 0.44}  # fmt: skip
_EMPTY_DENSE = {
    1: 0.45,
    3: 0.22,
    4: 0.22,
    5: 0.03,
    6: 0.22,
    7: 0.04,
    9: 0.04,
    10: 0.45,
    11: 0.04,
    12: 0.77,
    13: 0.22,
}
# Mean and deviation of log(1 + x) of I1 to I13.
_DENSE_LOGS = ((1.0, 1.1), (2.0, 1.9), (1.8, 1.4), (1.5, 1.0), (7.5, 2.4), (3.5, 1.7), (1.8, 1.2), (2.0, 1.1),
               (3.6, 1.4), (0.4, 0.4), (0.9, 0.7), (0.2, 0.6), (1.7, 1.1))  # fmt: skip
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class DayFile:
    """The file of one day of the log.

    Attributes:
        dt: the date.
        path: path of the file.
        rows: number of rows.
        bytes: size of the file in bytes.
    """

    dt: str
    path: str
    rows: int
    bytes: int


def make_log(cache: Path, rows: int, days: int, seed: int = 1, processes: int = 1) -> list[DayFile]:
    """Returns the files of a log, oldest day first. Generates the log if it does not exist.

    The files are `cache/<parameters>/dt=…/clicks.tsv`.

    Args:
        cache: the folder of all generated logs.
        rows: number of rows of all days together. Each day gets the same number; the first days get one more
            if the division has a remainder.
        days: number of days.
        seed: the seed of the random numbers.
        processes: number of processes that write the files of days at the same time.
    """
    folder = cache / f"criteo-v{FORMAT}-rows{rows}-days{days}-seed{seed}"
    index = folder / "index.json"
    if not index.exists():
        attempt = folder.with_name(f"{folder.name}-{uuid.uuid4().hex[:8]}")
        dates = [(FIRST_DAY + timedelta(days=day)).isoformat() for day in range(days)]
        paths = [attempt / f"dt={dt}" / "clicks.tsv" for dt in dates]
        for path in paths:
            path.parent.mkdir(parents=True)
        rows_of = [rows // days + (day < rows % days) for day in range(days)]
        sizes = _write_days(list(zip(paths, rows_of, range(days), [seed] * days, strict=True)), processes)
        day_entries = [
            {"dt": dt, "rows": day_rows, "bytes": size}
            for dt, day_rows, size in zip(dates, rows_of, sizes, strict=True)
        ]
        (attempt / "index.json").write_text(json.dumps(day_entries), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # a folder without an index is left from a killed run
        attempt.rename(folder)
    entries = json.loads(index.read_text(encoding="utf-8"))
    return [
        DayFile(e["dt"], str(folder / f"dt={e['dt']}" / "clicks.tsv"), e["rows"], e["bytes"]) for e in entries
    ]


def repeated(log: Sequence[DayFile], times: int) -> list[DayFile]:
    """Returns a log whose days have the lines of another log's days, this number of times each.

    Its files are written beside those of the other log if they do not exist.
    """
    if times == 1:
        return [*log]
    longer = []
    for day in log:
        source = Path(day.path)
        target = source.parent.parent.with_name(f"{source.parent.parent.name}-times{times}")
        path = target / source.parent.name / source.name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".partial")
            with fresh.open("wb") as stream:
                for _ in range(times):
                    with source.open("rb") as lines:
                        shutil.copyfileobj(lines, stream, 2**24)
            fresh.rename(path)
        longer.append(DayFile(day.dt, str(path), day.rows * times, day.bytes * times))
    return longer


def _write_days(calls: list[tuple[Path, int, int, int]], processes: int) -> list[int]:
    """Calls `write_day` with each tuple of arguments, in this process or in several others."""
    if processes == 1:
        return [write_day(*call) for call in calls]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return list(pool.map(write_day, *zip(*calls, strict=True)))


def write_day(path: Path, rows: int, day: int, seed: int) -> int:
    """Writes the file of one day and returns its size in bytes."""
    rng = np.random.default_rng([FORMAT, seed, day])
    size = 0
    with path.open("wb") as stream:
        for start in range(0, rows, _BLOCK_ROWS):
            size += stream.write(_lines(rng, min(_BLOCK_ROWS, rows - start)))
    return size


def _lines(rng: np.random.Generator, rows: int) -> bytes:
    line = pc.binary_join_element_wise(
        *_fields(rng, rows), "\t", null_handling="replace", null_replacement=""
    )
    ended = pc.binary_join_element_wise(line, "", "\n")
    return bytes(ended.buffers()[2].to_pybytes())


def _fields(rng: np.random.Generator, rows: int) -> Iterator[pa.StringArray]:
    yield pa.array((rng.random(rows) < CLICK_SHARE).astype(np.int8)).cast(pa.string())
    for place in range(1, len(DENSE) + 1):
        yield pa.array(_integers(rng, rows, place), mask=_empty(rng, rows, _EMPTY_DENSE.get(place))).cast(
            pa.string()
        )
    for place, name in enumerate(CATEGORICAL, start=1):
        ranks = zipf_ranks(rng, rows, CARDINALITIES[place - 1])
        tokens = hex_tokens(name, ranks)
        empty = _empty(rng, rows, _EMPTY_CATEGORICAL.get(place))
        yield tokens if empty is None else pc.if_else(pa.array(empty), pa.scalar(None, pa.string()), tokens)


def zipf_ranks(rng: np.random.Generator, rows: int, values: int) -> NDArray[np.int64]:
    """Draws ranks from 1 to `values` with P(r) = log((r + 1) / r) / log(values + 1)."""
    drawn = np.exp(rng.random(rows) * np.log(values + 1.0)).astype(np.int64)
    return np.clip(drawn, 1, values)


def _integers(rng: np.random.Generator, rows: int, place: int) -> NDArray[np.int64]:
    mean, deviation = _DENSE_LOGS[place - 1]
    drawn = np.expm1(np.maximum(rng.normal(mean, deviation, rows), 0.0))
    values = np.minimum(drawn, _LARGEST).astype(np.int64)
    if place == 2:  # Criteo's second integer begins at -2
        values -= rng.integers(0, 3, rows)
    return values


def _empty(rng: np.random.Generator, rows: int, share: float | None) -> NDArray[np.bool_] | None:
    return None if share is None else rng.random(rows) < share
