"""How rows are written: Criteo's headerless TSV, or CSV with named columns. These two layouts hold the same rows.

In the criteo layout every category and key is 8 hex digits: its code times an odd number that differs by column. An
odd multiplier is a bijection of 32 bits, so no two values of a column share a token, and codes can be had back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etl.synthetic.clicks.columns import EVENT_TIME, FEATURES, LABEL, MISSING, Column
from etl.synthetic.clicks.impressions import Impressions

Ints = NDArray[np.int64]

_IDS = 2**32
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint8).reshape(256, 2)


@dataclass(frozen=True)
class Layout:
    """One way to write rows.

    Attributes:
        names: written columns in order, the label first.
        format: the log.format it is read with, also the files' ending.
        has_header: whether files begin with the names.
        columns: what they hold behind label and time; `feature_names` are the names of these, in their order.
    """

    names: tuple[str, ...]
    separator: str
    format: str
    has_header: bool
    columns: tuple[Column, ...]
    feature_names: tuple[str, ...]

    @property
    def header(self) -> bytes:
        return (self.separator.join(self.names) + "\n").encode() if self.has_header else b""


@dataclass(frozen=True)
class ImpressionLayout(Layout):
    """A way to write impressions.

    Attributes:
        has_time: whether `event_time` is a column.
        token: (column, its values) → text, empty fields as null.
    """

    has_time: bool
    token: Callable[[Column, Ints], pa.StringArray]

    def texts(self, impressions: Impressions, midnight: int) -> list[pa.StringArray]:
        """One array of texts a written column, in order. `midnight`: the day's start, seconds since 1970 UTC."""
        written = [number_texts(impressions.labels)]
        if self.has_time:
            written.append(number_texts(midnight + impressions.seconds))
        return written + [self.token(column, impressions.values[column.name]) for column in FEATURES]


def hex_multiplier(column: str) -> int:
    """The odd number that scatters a criteo column's codes over 32 bits."""
    return int.from_bytes(sha256(column.encode()).digest()[:4], "big") | 1


def hex_tokens(column: str, codes: Ints) -> pa.StringArray:
    """8 hex digits for each code; codes beyond 32 bits wrap round. Never all zeros for small codes."""
    scattered = ((codes + 1) % _IDS * hex_multiplier(column)) % _IDS
    digits = _HEX[scattered.astype(">u4").view(np.uint8).reshape(-1, 4)]  # (rows, 4, 2)
    offsets = np.arange(0, 8 * len(codes) + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(len(codes), pa.py_buffer(offsets), pa.py_buffer(digits.tobytes()))


def value_name(column: Column, code: int) -> str:
    """The named layout's text of a category: `segment_3` in user_segment."""
    return f"{column.name.removeprefix('user_').removeprefix('item_')}_{code}"


def _criteo_token(column: Column, values: Ints) -> pa.StringArray:
    if column.kind == "integer":
        return number_texts(values)
    if column.kind == "key":
        return hex_tokens(column.criteo, values)
    return _looked_up(hex_tokens(column.criteo, np.arange(column.levels)), values)


def _named_token(column: Column, values: Ints) -> pa.StringArray:
    if column.kind == "integer":
        return number_texts(values)
    if column.kind == "key":
        return pc.binary_join_element_wise(column.side[0], number_texts(values), "")
    return _looked_up(pa.array([value_name(column, code) for code in range(column.levels)]), values)


def number_texts(values: Ints) -> pa.StringArray:
    """Decimal numbers; null where MISSING."""
    return pa.array(values, mask=values == MISSING).cast(pa.string())


def _looked_up(names: pa.StringArray, codes: Ints) -> pa.StringArray:
    return names.take(pa.array(codes, mask=codes == MISSING))


_CRITEO_NAMES = tuple(column.criteo for column in FEATURES)
_NAMES = tuple(column.name for column in FEATURES)
CRITEO = ImpressionLayout(
    ("label", *_CRITEO_NAMES), "\t", "tsv", False, FEATURES, _CRITEO_NAMES, False, _criteo_token
)
NAMED = ImpressionLayout((LABEL, EVENT_TIME, *_NAMES), ",", "csv", True, FEATURES, _NAMES, True, _named_token)
