"""Reads and encodes the log of benchmarks/peers/plain_run.py.

Every column of a file is read as a dictionary: the distinct strings of the file, and one code per row. All
work on strings (checks, conversion to integers, log1p, vocabularies) is done once per distinct string. The values
of rows are then looked up by their codes. Files are read in parallel, one thread per core.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

LABEL = "label"
DENSE = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
COLUMNS = (LABEL, *DENSE, *CATEGORICAL)
USER, ITEM = CATEGORICAL.index("C1"), CATEGORICAL.index("C2")
NULL_ID, OOV_ID, FIRST_ID = 1, 2, 3
MIN_COUNT = 5

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_BLOCK_BYTES = 4 << 20
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())

Codes = NDArray[np.unsignedinteger]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class RawFile:
    """The good rows of one file.

    Attributes:
        codes: one array (n,) per column of the file. The code of null is the number of distinct texts.
        texts: the distinct texts of each column, including those that occur only in dropped rows.
        dropped: number of rows that were dropped.
    """

    codes: tuple[Codes, ...]
    texts: tuple[list[str], ...]
    dropped: int

    def __len__(self) -> int:
        return len(self.codes[0])

    def labels(self) -> Floats:
        """Returns the labels (n,): 0 or 1."""
        return np.array([text == "1" for text in self.texts[0]], np.float32)[self.codes[0]]


def read_days(raw: Path, days: Sequence[str], cores: int) -> list[list[RawFile]]:
    """Reads the files of each day. The files of a day are in the order of their names.

    Raises:
        FileNotFoundError: a day has no file.
    """
    paths = [sorted((raw / f"dt={day}").glob("*.tsv")) for day in days]
    for day, of_day in zip(days, paths, strict=True):
        if not of_day:
            raise FileNotFoundError(f"{raw}/dt={day} has no file *.tsv: generate the log of this day")
    with ThreadPoolExecutor(cores) as pool:
        files = iter(list(pool.map(_read_file, [path for of_day in paths for path in of_day])))
    return [[next(files) for _ in of_day] for of_day in paths]


def _read_file(path: Path) -> RawFile:
    """Reads a file. Drops rows with a wrong number of fields, label or integer, or without user or item."""
    miscounted: list[int] = []

    def skip(row: csv.InvalidRow) -> str:
        miscounted.append(row.actual_columns)
        return "skip"

    table = csv.read_csv(
        path,
        csv.ReadOptions(column_names=COLUMNS, block_size=_BLOCK_BYTES, use_threads=False),
        csv.ParseOptions(delimiter="\t", quote_char=False, double_quote=False, invalid_row_handler=skip),
        csv.ConvertOptions(
            column_types=dict.fromkeys(COLUMNS, _DICTIONARY),
            strings_can_be_null=True,
            null_values=[""],
            check_utf8=False,
        ),
    ).unify_dictionaries()
    codes, texts = [], []
    bad = np.zeros(len(table), bool)
    for name in COLUMNS:
        column = table[name].combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        values = column.dictionary.to_pylist()
        dtype = np.min_scalar_type(len(values))
        codes.append(column.indices.fill_null(len(values)).to_numpy(zero_copy_only=False).astype(dtype))
        texts.append(values)
        refused = np.array([not _accepts(name, text) for text in (*values, None)])
        if refused[:-1].any() or (refused[-1] and column.null_count):
            bad |= refused[codes[-1]]
    if bad.any():
        codes = [column[~bad] for column in codes]
    return RawFile(tuple(codes), tuple(texts), len(miscounted) + int(bad.sum()))


def _accepts(column: str, text: str | None) -> bool:
    if column == LABEL:
        return text in ("0", "1")
    if column in DENSE:
        return text is None or (_INTEGER.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63)
    return text is not None or column not in (CATEGORICAL[USER], CATEGORICAL[ITEM])


@dataclass(frozen=True)
class Encoding:
    """Values that encode the columns, learned from the train days.

    Attributes:
        mean, std: mean and standard deviation of log(1 + x) of each integer column, (13,).
        vocabularies: maps each text of a categorical column to its id, one per column.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    vocabularies: tuple[Mapping[str, int], ...]

    @property
    def cardinalities(self) -> list[int]:
        """Returns the number of ids of each categorical column, reserved ids included."""
        return [FIRST_ID + len(vocabulary) for vocabulary in self.vocabularies]

    def dense_value(self, column: int, text: str | None) -> float:
        """Returns the normalised value of an integer column."""
        return float((_logarithm(text) - self.mean[column]) / self.std[column])

    def id_of(self, column: int, text: str | None) -> int:
        """Returns the id of a value of a categorical column."""
        return NULL_ID if text is None else self.vocabularies[column].get(text, OOV_ID)


def _logarithm(text: str | None) -> float:
    return float(np.log1p(max(int(text or 0), 0)))


def fit(files: Sequence[RawFile], before: Encoding | None) -> Encoding:
    """Learns an encoding from the files of the train days.

    Args:
        files: the files of the train days.
        before: an encoding to extend, or None. Its values keep their ids, and new ones are added. Its mean
            and standard deviation stay.
    """
    vocabularies = []
    for column in range(len(CATEGORICAL)):
        counts = _counts(files, 1 + len(DENSE) + column)
        known = {} if before is None else dict(before.vocabularies[column])
        new = [text for text, count in counts.items() if text and count >= MIN_COUNT and text not in known]
        for text in sorted(new, key=lambda text: (-counts[text], text)):
            known[text] = FIRST_ID + len(known)
        vocabularies.append(known)
    if before is not None:
        return Encoding(before.mean, before.std, tuple(vocabularies))
    moments = [_moments(_counts(files, 1 + column)) for column in range(len(DENSE))]
    mean, std = np.array(moments).T
    return Encoding(mean, np.where(std == 0, 1, std), tuple(vocabularies))


def _counts(files: Sequence[RawFile], column: int) -> dict[str | None, int]:
    """Returns the number of rows of each text of a column. The text of null is None."""
    counts: dict[str | None, int] = {}
    for file in files:
        texts: list[str | None] = [*file.texts[column], None]
        rows = np.bincount(file.codes[column], minlength=len(texts)).tolist()
        for text, count in zip(texts, rows, strict=True):
            counts[text] = counts.get(text, 0) + count
    return counts


def _moments(counts: Mapping[str | None, int]) -> tuple[float, float]:
    """Returns mean and standard deviation of log(1 + x) of a column."""
    present = [(text, count) for text, count in counts.items() if count]
    values, weights = (
        np.array([_logarithm(text) for text, _ in present]),
        np.array([count for _, count in present]),
    )
    mean = float(np.average(values, weights=weights))
    return mean, float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))


@dataclass(frozen=True)
class Keys:
    """The users or items of a log.

    Attributes:
        texts: each key once, in the order of its first row.
        rows: index in `texts` of each row's key, (n,).
    """

    texts: list[str]
    rows: Ints

    def latest(self) -> NDArray[np.int64]:
        """Returns the last row of each key, (len(texts),)."""
        last = np.zeros(len(self.texts), np.int64)
        last[self.rows] = np.arange(len(self.rows))  # of several values for one key, the last one stays
        return last

    def of_rows(self, chosen: NDArray[np.bool_]) -> list[str]:
        """Returns the keys of the chosen rows; `chosen` is (n,)."""
        return [self.texts[number] for number in self.rows[chosen].tolist()]


@dataclass(frozen=True)
class Log:
    """Encoded rows: `labels` (n,), `dense` (n, 13), `ids` (n, 26), users and items."""

    labels: Floats
    dense: Floats
    ids: Ints
    users: Keys
    items: Keys


def encode(files: Sequence[RawFile], encoding: Encoding, cores: int) -> Log:
    """Encodes the rows of all files, in their order."""
    starts = np.cumsum([0, *(len(file) for file in files)]).tolist()
    dense = np.empty((starts[-1], len(DENSE)), np.float32)
    ids = np.empty((starts[-1], len(CATEGORICAL)), np.int32)

    def encode_file(file: RawFile, start: int) -> None:
        rows = slice(start, start + len(file))
        for column, (codes, texts) in enumerate(zip(file.codes[1:], file.texts[1:], strict=True)):
            place = column - len(DENSE)
            to_value = partial(encoding.dense_value, column) if place < 0 else partial(encoding.id_of, place)
            # Texts that occur only in dropped rows need not be integers.
            values = [to_value(text) if _accepts(COLUMNS[1 + column], text) else 0 for text in (*texts, None)]
            if place < 0:
                dense[rows, column] = np.array(values, np.float32)[codes]
            else:
                ids[rows, place] = np.array(values, np.int32)[codes]

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(encode_file, files, starts[:-1]))
    labels = np.concatenate([file.labels() for file in files])
    return Log(labels, dense, ids, keys(files, USER), keys(files, ITEM))


def keys(files: Sequence[RawFile], column: int) -> Keys:
    """Returns the users (column USER) or items (column ITEM) of all rows."""
    place = 1 + len(DENSE) + column
    index: dict[str, int] = {}
    rows = []
    for file in files:
        present = np.bincount(file.codes[place], minlength=len(file.texts[place])) > 0
        number = [
            index.setdefault(text, len(index)) if occurs else -1
            for text, occurs in zip(file.texts[place], present.tolist(), strict=True)
        ]
        rows.append(np.array(number, np.int32)[file.codes[place]])
    return Keys(list(index), np.concatenate(rows))
