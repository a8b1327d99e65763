"""Generates the lines of one file of impressions, in blocks and in one of two layouts.

The lines depend only on the configuration, the date and the index of the file.

The layout `criteo` is Criteo's TSV without a header. The layout `named` is CSV with named columns. The same
rows can be written in either layout.

In the layout `criteo`, a category or key is written as a token of 8 hex digits. The token is (code + 1) times
an odd number, modulo 2**32. Each column has a different odd number. Multiplication by an odd number is a
bijection of 32-bit numbers, so different codes of a column have different tokens, and tokens can be decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from hashlib import sha256
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.click_probability import (
    EVENT_TIME,
    FEATURES,
    KEYS,
    LABEL,
    MISSING,
    STEPS,
    GeneratedColumn,
    auc_of_counts,
)
from etl.synthetic.impressions import ClickWorld, DrawnImpressions, draw_impressions, world_of_day

Ints = NDArray[np.int64]
_IDS = 2**32
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint8).reshape(256, 2)


@dataclass(frozen=True)
class LogLayout:
    """The names of the columns and the text format of a generated log.

    Attributes:
        names: names of all columns in the order in which they are written. The first is the label.
        separator: the character between two fields. It is an ASCII character.
        format: the value of `log.format` with which the files can be read. It is also the files' suffix.
        has_header: whether each file begins with a line that contains the names.
        columns: all columns except label and time.
        feature_names: feature_names[i] is the name of columns[i] in this layout.
    """

    names: tuple[str, ...]
    separator: str
    format: str
    has_header: bool
    columns: tuple[GeneratedColumn, ...]
    feature_names: tuple[str, ...]

    @property
    def header(self) -> bytes:
        """Returns the header line, or empty bytes if files of this layout have no header."""
        return (self.separator.join(self.names) + "\n").encode() if self.has_header else b""


@dataclass(frozen=True)
class ImpressionLayout(LogLayout):
    """The layout of a log in which each row is one impression.

    Attributes:
        has_time: whether `event_time` is a column.
        token: function that converts the values of a column to texts. A null text means an empty field.
    """

    has_time: bool
    token: Callable[[GeneratedColumn, Ints], pa.StringArray]

    def texts(self, impressions: DrawnImpressions, midnight: int) -> list[pa.StringArray]:
        """Returns one array of texts per column, in the order in which columns are written.

        `midnight` is the day's start in seconds since 1970 UTC.
        """
        written = [number_texts(impressions.labels)]
        if self.has_time:
            written.append(number_texts(midnight + impressions.seconds))
        return written + [self.token(column, impressions.values[column.name]) for column in FEATURES]


def hex_multiplier(column: str) -> int:
    """Returns the odd number by which the layout `criteo` multiplies the codes of a column."""
    return int.from_bytes(sha256(column.encode()).digest()[:4], "big") | 1


def hex_tokens(column: str, codes: Ints) -> pa.StringArray:
    """Returns the token of each code, a text of 8 hex digits, shape (n,).

    Codes are taken modulo 2**32. Only the code 2**32 - 1 (also MISSING, which is -1) has the token 00000000.
    """
    scattered = ((codes + 1) % _IDS * hex_multiplier(column)) % _IDS
    digits = _HEX[scattered.astype(">u4").view(np.uint8).reshape(-1, 4)]  # (rows, 4, 2)
    offsets = np.arange(0, 8 * len(codes) + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(len(codes), pa.py_buffer(offsets), pa.py_buffer(digits.tobytes()))


def value_name(column: GeneratedColumn, code: int) -> str:
    """Returns the text of a category in the named layout, such as `segment_3` for code 3 of user_segment."""
    return f"{column.name.removeprefix('user_').removeprefix('item_')}_{code}"


def _criteo_token(column: GeneratedColumn, values: Ints) -> pa.StringArray:
    if column.kind == "integer":
        return number_texts(values)
    if column.kind == "key":
        return hex_tokens(column.criteo, values)
    if column.kind == "category":
        return _names_of(hex_tokens(column.criteo, np.arange(column.levels)), values)
    assert_never(column.kind)


def _named_token(column: GeneratedColumn, values: Ints) -> pa.StringArray:
    if column.kind == "integer":
        return number_texts(values)
    if column.kind == "key":
        return pc.binary_join_element_wise(column.side[0], number_texts(values), "")
    if column.kind == "category":
        return _names_of(pa.array([value_name(column, code) for code in range(column.levels)]), values)
    assert_never(column.kind)


def number_texts(values: Ints) -> pa.StringArray:
    """Returns the decimal text of each of n integers, shape (n,); null for MISSING."""
    return pa.array(values, mask=values == MISSING).cast(pa.string())


def _names_of(names: pa.StringArray, codes: Ints) -> pa.StringArray:
    return names.take(pa.array(codes, mask=codes == MISSING))


_CRITEO_NAMES = tuple(column.criteo for column in FEATURES)
_NAMES = tuple(column.name for column in FEATURES)
CRITEO = ImpressionLayout(
    ("label", *_CRITEO_NAMES), "\t", "tsv", False, FEATURES, _CRITEO_NAMES, False, _criteo_token
)
NAMED = ImpressionLayout((LABEL, EVENT_TIME, *_NAMES), ",", "csv", True, FEATURES, _NAMES, True, _named_token)


# The functions below convert rows to lines. They make some of the rows malformed on purpose, to test the
# quarantine.
#
# A malformed row has exactly one error, which is called its damage. The damage is named like the reason for
# which the row is quarantined: `field_count` (one field too few or too many), `integer:<column>` (not an
# integer), `label:<column>` (neither 0 nor 1) or `missing_key:<column>` (an empty id).

WHOLE = -1  # a row without damage
_NOT_INTEGER, _NOT_LABEL = "n/a", "2"
_KINDS = 4


def reasons_of(layout: LogLayout) -> list[str]:
    """Returns the reasons for which malformed rows of a layout are quarantined, one per kind of damage."""
    columns = list(zip(layout.columns, layout.feature_names, strict=True))
    integers = [f"integer:{name}" for column, name in columns if column.kind == "integer"]
    keys = [f"missing_key:{name}" for column, name in columns if column.kind == "key"]
    return ["field_count", f"label:{layout.names[0]}", *integers, *keys]


def draw_damage(layout: LogLayout, rng: np.random.Generator, rows: int, share: float) -> Ints:
    """Draws which rows become malformed. Returns the damage of each row, shape (rows,).

    The damage of a row is an index in `reasons_of(layout)`, or WHOLE for a valid row. A row becomes malformed
    with the probability `share`. The kinds field_count, label, integer and missing_key are then equally
    likely.
    """
    reasons = reasons_of(layout)
    kinds = [reason.split(":")[0] for reason in reasons]
    weights = np.array([1.0 / (_KINDS * kinds.count(kind)) for kind in kinds])
    chosen = np.searchsorted(np.cumsum(weights)[:-1], rng.random(rows), side="right")
    return np.where(rng.random(rows) < share, chosen, WHOLE)


def lines(layout: LogLayout, texts: list[pa.StringArray], damage: Ints) -> bytes:
    """Converts rows to lines of text. Rows with a damage become malformed lines.

    Args:
        layout: the layout of the rows.
        texts: one array per column, in the order in which columns are written. Null is written as an empty
            field.
        damage: the result of `draw_damage`.
    """
    columns = list(texts)
    for index, reason in enumerate(reasons_of(layout)):
        damaged = damage == index
        kind, _, column = reason.partition(":")
        if kind == "field_count" or not damaged.any():
            continue
        column_index = layout.names.index(column)
        text = {"integer": _NOT_INTEGER, "label": _NOT_LABEL, "missing_key": ""}[kind]
        columns[column_index] = pc.if_else(pa.array(damaged), text, columns[column_index])
    start = pc.binary_join_element_wise(
        *columns[:-1], layout.separator, null_handling="replace", null_replacement=""
    )
    whole = pc.binary_join_element_wise(
        start, columns[-1], layout.separator, null_handling="replace", null_replacement=""
    )
    miscounted = damage == reasons_of(layout).index("field_count")
    # Of the rows with this damage, those with even indices lose their last field. The others get one more
    # field.
    even = np.arange(len(damage)) % 2 == 0
    too_long = pc.binary_join_element_wise(whole, "0", layout.separator)
    shaped = pc.if_else(pa.array(miscounted & even), start, whole)
    shaped = pc.if_else(pa.array(miscounted & ~even), too_long, shaped)
    ended = pc.binary_join_element_wise(shaped, "", "\n")
    return ended.buffers()[2].to_pybytes() if len(ended) else b""


# The functions below generate the lines of one file of impressions, in blocks.

# Number of rows that are drawn at once, which limits the use of memory. A different number would give other
# rows.
_BLOCK_ROWS = 32_768


def impression_blocks(
    layout: ImpressionLayout,
) -> Callable[[Generate, date, int], Iterator[tuple[bytes, ImpressionCounts]]]:
    """Returns a function that yields the lines and the summary of each block of a file.

    The function's arguments are the configuration, the day and the index of the file. The first block begins
    with the header, if the layout has one.
    """

    def blocks(config: Generate, day: date, file: int) -> Iterator[tuple[bytes, ImpressionCounts]]:
        world, start_of_day = world_of_day(config, day), midnight(day)
        start, end = part_of_file(config, config.rows_per_day, file)
        for block, first in enumerate(range(start, end, _BLOCK_ROWS)):
            last = min(first + _BLOCK_ROWS, end)
            window = (first / config.rows_per_day, last / config.rows_per_day)
            rows, breaks = generators(config, day, file, block)
            impressions = draw_impressions(world, rows, last - first, window, config.missing_share)
            damage = draw_damage(layout, breaks, len(impressions), config.malformed_share)
            text = lines(layout, layout.texts(impressions, start_of_day), damage)
            head = layout.header if block == 0 else b""
            yield head + text, summarise(layout, world, impressions, damage)

    return blocks


def impression_facts(
    layout: ImpressionLayout,
) -> Callable[[Generate, date, ImpressionCounts], dict[str, Any]]:
    """Returns a function that computes the entries of `facts` in a day's manifest, such as `best_auc`.

    The function's arguments are the configuration, the day and the summary of all rows of the day.
    """
    return lambda config, day, summary: facts_of(layout, world_of_day(config, day), summary)


def part_of_file(config: Generate, number: int, file: int) -> tuple[int, int]:
    """Returns (start, end), the range of rows or displays of a day that one file contains.

    The `number` rows or displays of a day are divided evenly among its files. `file` is the index of the
    file.
    """
    return number * file // config.files_per_day, number * (file + 1) // config.files_per_day


def midnight(day: date) -> int:
    """Returns the start of a day in seconds since 1970 UTC."""
    return int(datetime.combine(day, time(), UTC).timestamp())


def generators(config: Generate, day: date, file: int, block: int) -> list[np.random.Generator]:
    """Returns two independent random generators for a block.

    The first generator draws the rows. The second selects rows and makes them malformed. So the share of
    malformed rows does not change the rows that stay valid.
    """
    seeds = np.random.SeedSequence([config.seed, day.toordinal(), file, block]).spawn(2)
    return [np.random.default_rng(seed) for seed in seeds]


# The code below counts generated rows.
#
# The worker that draws a block also counts the rows of this block. Then the counts of all blocks of a day are
# added.


@dataclass(frozen=True)
class ImpressionCounts:
    """Counts of a set of generated rows. The sum of two such objects has the counts of both sets.

    The generator makes some rows malformed on purpose (`draw_damage`); all other rows are valid. `missing`,
    `outcomes` and `seen` include only valid rows.

    Attributes:
        rows: number of rows.
        malformed: number of malformed rows for each reason to quarantine a row, in the order of
            `layout.reasons_of`.
        missing: number of empty fields in each column, in the order of FEATURES.
        outcomes: (2, STEPS). outcomes[l, s] is the number of rows with the label l and the click probability
            with index s.
        seen: maps user_id and item_id to packed bits, one bit per user or item of the day. A bit is 1 if the
            user or item has a valid row.
    """

    rows: int
    malformed: NDArray[np.int64]
    missing: NDArray[np.int64]
    outcomes: NDArray[np.int64]
    seen: dict[str, NDArray[np.uint8]]

    def __add__(self, other: ImpressionCounts) -> ImpressionCounts:
        return ImpressionCounts(
            self.rows + other.rows,
            self.malformed + other.malformed,
            self.missing + other.missing,
            self.outcomes + other.outcomes,
            {key: self.seen[key] | other.seen[key] for key in KEYS},
        )


def summarise(
    layout: LogLayout, world: ClickWorld, impressions: DrawnImpressions, damage: NDArray[np.int64]
) -> ImpressionCounts:
    """Counts the rows, malformed rows, empty fields, clicks and ids in one block of generated rows."""
    whole = damage == WHOLE
    outcomes = np.bincount(impressions.labels[whole] * STEPS + impressions.steps[whole], minlength=2 * STEPS)
    missing = [np.count_nonzero(impressions.values[column.name][whole] == MISSING) for column in FEATURES]
    seen = {}
    for key, ids in (("user_id", world.users["user_id"]), ("item_id", world.items["item_id"])):
        present = np.zeros(len(ids), dtype=bool)
        present[impressions.values[key][whole] - ids[0]] = True  # the ids of a day are consecutive numbers
        seen[key] = np.packbits(present)
    return ImpressionCounts(
        len(damage),
        np.bincount(damage[~whole], minlength=len(reasons_of(layout))),
        np.array(missing),
        outcomes.reshape(2, STEPS),
        seen,
    )


def facts_of(layout: LogLayout, world: ClickWorld, summary: ImpressionCounts) -> dict[str, Any]:
    """Returns the facts that a day's manifest contains about the generated rows.

    `best_auc` is the AUC of the click probability from which the labels were drawn. No function of the log's
    columns has a higher AUC, except by chance. `cold_users` and `cold_items` are the numbers of users and
    items in the log that are new on the day.
    """
    users, items = (np.unpackbits(summary.seen[key]) for key in ("user_id", "item_id"))
    malformed = dict(zip(reasons_of(layout), summary.malformed.tolist(), strict=True))
    return {
        "rows": summary.rows,
        "malformed_rows": int(summary.malformed.sum()),
        "malformed": {reason: count for reason, count in malformed.items() if count},
        "missing": dict(zip(layout.feature_names, summary.missing.tolist(), strict=True)),
        "positives": int(summary.outcomes[1].sum()),
        "users": int(users.sum()),
        "items": int(items.sum()),
        "cold_users": int(users[world.new_users - int(world.users["user_id"][0]) :].sum()),
        "cold_items": int(items[world.new_items - int(world.items["item_id"][0]) :].sum()),
        "best_auc": auc_of_counts(summary.outcomes),
    }


def total(summaries: Iterable[Any]) -> Any:
    """Returns the sum of one or more summaries of the same kind of log."""
    first, *others = summaries
    return sum(others, start=first)
