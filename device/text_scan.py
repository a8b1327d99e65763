"""Converts lines of separated text to dictionary-encoded columns with torch operators, on any device.

The result equals that of the compiled scanner (etl/native/scan.cpp): it has the same rows, codes and reasons
for rejected lines, and the same order of dictionaries. Each operation processes all lines or all values at
once:

1. The positions of all delimiters determine the lines, the rows and the fields.
2. A field is a sequence of words of 8 bytes. The key of a field is a hash of its words. Sorting the keys of
   many columns at once brings equal values together. The sort is stable, so the first field of a group of
   equal keys is the first in the log.
3. Each word is compared with the word at the same position of the first field of its group. If a word
   differs, two values have the same key (a collision). In this case, the caller scans the block on the host.

Only distinct values, their counts, and the numbers of lines are copied to the host. Codes stay on the device.

Notation: a block has B bytes and n rows. Step 2 encodes the columns in rounds. A round encodes G columns,
which have c values that are not empty. These values have w words in total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from device.columns import DeviceColumn, to_host

# Maximum number of fields that are encoded at once. It limits the memory that this needs: 3 to 4 GB if most
# values have at most 8 bytes.
ROUND_FIELDS = 2**24

_LF, _QUOTE = ord("\n"), ord('"')
# The constants of `mix` in etl/native/values.h, as signed numbers.
_FACTOR, _OTHER_FACTOR = 0x9E3779B97F4A7C15 - 2**64, 0xD6E8FEB86659FD93 - 2**64

Mix = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ScannedText:
    """The result of scanning one block of lines: its n rows, and the reasons of its rejected lines.

    Attributes:
        lines: number of lines of the block, including rejected lines.
        row_lines: (n,) int64, ascending: the index of the line of each row.
        columns: maps the index of a field to its column. An empty field is null.
        counts: maps the index of a field to an int64 array. Element v is the number of rows with dictionary
            value v.
        broken: maps the index of each rejected line to the reason, `not_utf8` or `field_count`.
    """

    lines: int
    row_lines: NDArray[np.int64]
    columns: Mapping[int, DeviceColumn]
    counts: Mapping[int, NDArray[np.int64]]
    broken: Mapping[int, str]


def mix(words: Tensor) -> Tensor:
    """Returns a 64-bit hash of each int64 word."""
    words = words * _FACTOR
    words = words ^ ((words >> 32) & 0xFFFFFFFF)
    return words * _OTHER_FACTOR


@torch.no_grad()
def scan_text(
    block: bytes | memoryview,
    separator: str,
    width: int,
    fields: Sequence[int],
    quoted: bool,
    device: torch.device,
    mix: Mix = mix,
) -> ScannedText | None:
    """Scans a block of complete lines. Every line ends with LF, except that the last line may have no LF.

    Returns None if the caller must scan the block on the host. This is necessary if the block contains double
    quotes, or if two different values have the same key.

    Args:
        block: bytes of the lines, less than 2 GiB.
        separator: one ASCII character.
        width: number of fields that a line must have.
        fields: indices of the fields to return.
        quoted: whether fields may be enclosed in double quotes.
        device: the device that scans the block.
        mix: the hash function of words. Only tests pass another function.
    """
    words, size = _upload(block, device)
    text = words.view(torch.uint8)[:size]
    is_end = text == _LF
    positions = (is_end | (text == ord(separator))).nonzero().squeeze(1)  # Positions of all delimiters.
    ends = is_end[positions].nonzero().squeeze(1)  # Indices in `positions` of the delimiters that end lines.
    has_quote, has_high = (text == _QUOTE).any(), (text >= 0x80).any()
    flags = to_host(torch.stack([has_quote, has_high])).tolist()
    if quoted and flags[0]:
        return None
    line_ends = positions[ends]
    field_counts = ends - torch.cat([ends.new_full((1,), -1), ends[:-1]])
    is_row = field_counts == width
    is_invalid = torch.zeros_like(is_row)
    if flags[1]:
        errors = _utf8_errors(text).nonzero().squeeze(1)
        is_invalid[torch.searchsorted(line_ends, errors)] = True
        is_row &= ~is_invalid
    row_lines = is_row.nonzero().squeeze(1)
    broken = (~is_row).nonzero().squeeze(1)
    reasons = ["not_utf8" if invalid else "field_count" for invalid in to_host(is_invalid[broken]).tolist()]
    # Field f of a row begins one byte after bounds[first + f], and ends at bounds[first + f + 1].
    bounds = torch.cat([positions.new_full((1,), -1), positions])
    first = ends[row_lines] - width + 1
    columns: dict[int, DeviceColumn] = {}
    counts: dict[int, NDArray[np.int64]] = {}
    num_rows = row_lines.shape[0]
    for of_round in _rounds(fields, num_rows):
        place = first + torch.arange(of_round[0], of_round[-1] + 1, device=device)[:, None]  # (G, n)
        encoded = _encode(words, bounds[place] + 1, bounds[place + 1], mix)
        if encoded is None:
            return None
        for field in of_round:
            columns[field], counts[field] = encoded[field - of_round[0]]
    return ScannedText(
        lines=line_ends.shape[0],
        row_lines=to_host(row_lines),
        columns={field: columns[field] for field in fields},
        counts={field: counts[field] for field in fields},
        broken=dict(zip(to_host(broken).tolist(), reasons, strict=True)),
    )


def _rounds(fields: Sequence[int], rows: int) -> list[list[int]]:
    """Divides the columns of a block into groups of neighbours, each small enough to be encoded at once."""
    most = max(1, ROUND_FIELDS // max(rows, 1))
    rounds: list[list[int]] = []
    for field in sorted(set(fields)):
        if rounds and field == rounds[-1][-1] + 1 and len(rounds[-1]) < most:
            rounds[-1].append(field)
        else:
            rounds.append([field])
    return rounds


def _upload(block: bytes | memoryview, device: torch.device) -> tuple[Tensor, int]:
    """Copies a block to the device as int64 words, with an LF at its end and two words of zeros after it.

    Returns the words, and the number of bytes up to the last LF.
    """
    data = np.frombuffer(block, np.uint8)
    size = len(data) + int(len(data) > 0 and data[-1] != _LF)
    words = torch.empty(size // 8 + 3, dtype=torch.int64, pin_memory=device.type == "cuda")
    staged = words.numpy().view(np.uint8)
    staged[: len(data)] = data
    staged[len(data) :] = 0
    staged[len(data) : size] = _LF
    return words.to(device, non_blocking=True), size


def _utf8_errors(text: Tensor) -> Tensor:
    """Returns which bytes violate UTF-8 (table 3-7 of the Unicode standard): (B,) bool.

    If a sequence is too short, the error is at the byte after the sequence.
    """
    before = torch.cat([text.new_zeros(3), text])
    # For each byte, the bytes 3, 2 and 1 places before it.
    third, second, first = before[:-3], before[1:-2], before[2:-1]
    follows = _is_continuation(first)
    is_expected = first >= 0xC0
    is_expected |= follows & (second >= 0xE0)
    is_expected |= follows & _is_continuation(second) & (third >= 0xF0)
    errors = _is_continuation(text) != is_expected
    errors |= (text == 0xC0) | (text == 0xC1) | (text >= 0xF5)
    errors |= (first == 0xE0) & (text < 0xA0)
    errors |= (first == 0xED) & (text > 0x9F)
    errors |= (first == 0xF0) & (text < 0x90)
    errors |= (first == 0xF4) & (text > 0x8F)
    return errors


def _is_continuation(text: Tensor) -> Tensor:
    return (text & 0xC0) == 0x80


class _Values(NamedTuple):
    """The c values of some columns, ordered by column, and the w words of these values.

    Empty values are left out.

    Attributes:
        fields: (c,) index of each value among the G * n fields.
        columns: (c,) index of each value's column.
        starts, sizes: (c,) position of each value's first byte in the block, and its number of bytes.
        word_ends: (c,) index of the word after each value's last word.
        value_of_word: (w,) index of the value of each word.
        words: (w,) the words, padded with zeros.
    """

    fields: Tensor
    columns: Tensor
    starts: Tensor
    sizes: Tensor
    word_ends: Tensor
    value_of_word: Tensor
    words: Tensor


def _encode(
    words: Tensor, starts: Tensor, ends: Tensor, mix: Mix
) -> list[tuple[DeviceColumn, NDArray[np.int64]]] | None:
    """Returns G columns with their value counts; None if two different values have the same key.

    Args:
        words: the block.
        starts, ends: (G, n) positions of the first byte of each field, and of the byte after the field.
        mix: returns the hash of each word.
    """
    values = _values(words, starts, ends)
    num_columns, num_rows = starts.shape
    ordered, order = torch.sort(_keys(values, mix), stable=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    group_starts = is_first.nonzero().squeeze(1)
    firsts = order[group_starts]  # the first value of each group
    group_of = torch.empty_like(order)
    group_of[order] = is_first.cumsum(0) - 1
    same = _are_same(values, firsts[group_of])
    group_ends = torch.cat([group_starts[1:], group_starts.new_full((1,), order.shape[0])[: firsts.shape[0]]])
    # Groups in the order of first appearance, column by column.
    firsts, by_appearance = torch.sort(firsts)
    rank = torch.empty_like(by_appearance)
    rank[by_appearance] = torch.arange(by_appearance.shape[0], device=rank.device)
    column_starts = torch.searchsorted(
        values.columns[firsts], torch.arange(num_columns + 1, device=firsts.device)
    )
    sizes = values.sizes[firsts]
    facts = to_host(torch.cat([same.long()[None], sizes.sum()[None], column_starts])).tolist()
    if not facts[0]:
        return None
    num_distinct = column_starts.diff()
    codes = num_distinct.int()[:, None].repeat(1, num_rows)  # (G, n), the code of null
    codes.view(-1)[values.fields] = (rank[group_of] - column_starts[values.columns]).int()
    distinct = to_host(_bytes_of(words, values.starts[firsts], sizes, facts[1]))
    offsets = np.concatenate([[0], np.cumsum(to_host(sizes))])
    counts = to_host((group_ends - group_starts)[by_appearance])
    columns = []
    for column, (first, end) in enumerate(pairwise(facts[2:])):
        dictionary = _strings(offsets[first : end + 1], distinct)
        columns.append((DeviceColumn(dictionary, codes[column]), counts[first:end]))
    return columns


def _values(words: Tensor, starts: Tensor, ends: Tensor) -> _Values:
    num_rows = starts.shape[1]
    all_sizes = (ends - starts).view(-1)
    fields = (all_sizes > 0).nonzero().squeeze(1)
    sizes, first_bytes = all_sizes[fields], starts.reshape(-1)[fields]
    num_words = (sizes + 7) >> 3
    word_ends = num_words.cumsum(0)
    value_of_word = torch.repeat_interleave(num_words)
    done = 8 * _index_in_value(num_words, word_ends, value_of_word)
    of_fields = _words_at(words, first_bytes[value_of_word] + done, sizes[value_of_word] - done)
    columns = fields.div(max(num_rows, 1), rounding_mode="floor")
    return _Values(fields, columns, first_bytes, sizes, word_ends, value_of_word, of_fields)


def _index_in_value(num_words: Tensor, word_ends: Tensor, value_of_word: Tensor) -> Tensor:
    """Returns the position of each word within its value, (w,)."""
    index = torch.arange(value_of_word.shape[0], device=value_of_word.device)
    return index - (word_ends - num_words)[value_of_word]


def _words_at(words: Tensor, places: Tensor, left: Tensor) -> Tensor:
    """Returns one word for each of w places in a block: the value's bytes from there, padded with zeros.

    Args:
        words: the block.
        places: (w,) indices of bytes.
        left: (w,) number of bytes from the place to the end of the value, at least 1.
    """
    index, shift = places >> 3, (places & 7) << 3
    # The result of a shift by 64 bits is undefined, so one shift is divided into two.
    low = (words[index] >> shift) & ~((-1 << (56 - shift)) << 8)
    high = (words[index + 1] << (56 - shift)) << 8
    return (low | high) & ~((-1 << ((left.clamp(max=8) << 3) - 8)) << 8)


def _keys(values: _Values, mix: Mix) -> Tensor:
    """Returns the key of each value, (c,): a hash of its words, their order, its size and its column."""
    num_words = (values.sizes + 7) >> 3
    place = _index_in_value(num_words, values.word_ends, values.value_of_word)
    # Cumulative sums over all words, modulo 2**64. The sum over the words of one value is the difference
    # between the sum at its end and the sum before its first word.
    sums = mix(values.words ^ mix(place + 1)).cumsum(0)
    sums = torch.cat([sums.new_zeros(1), sums])
    of_value = sums[values.word_ends] - sums[values.word_ends - num_words]
    return mix(of_value ^ mix(values.sizes + (values.columns << 32)))


def _are_same(values: _Values, firsts: Tensor) -> Tensor:
    """Returns whether each value has the column, size and words of its group's first value: () bool.

    Args:
        values: the values.
        firsts: (c,) the index of the first value in each value's group.
    """
    num_words = (values.sizes + 7) >> 3
    begins = values.word_ends - num_words
    same = (values.sizes == values.sizes[firsts]) & (values.columns == values.columns[firsts])
    to_other = (begins[firsts] - begins)[values.value_of_word]
    others = torch.arange(values.words.shape[0], device=to_other.device) + to_other
    # If a value is longer than the first value of its group, an index could be beyond the last word.
    others = others.clamp(max=max(values.words.shape[0] - 1, 0))
    return same.all() & (values.words == values.words[others]).all()


def _bytes_of(words: Tensor, starts: Tensor, sizes: Tensor, total: int) -> Tensor:
    """Returns the concatenated bytes of some values: (total,) uint8."""
    before = sizes.cumsum(0) - sizes
    places = torch.repeat_interleave(starts - before, sizes, output_size=total)
    places += torch.arange(total, device=places.device)
    return words.view(torch.uint8)[places]


def _strings(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.StringArray:
    """Returns strings whose bounds in `data` are `offsets`."""
    buffers = [
        pa.py_buffer((offsets - offsets[0]).astype(np.int32)),
        pa.py_buffer(data[offsets[0] : offsets[-1]]),
    ]
    return pa.StringArray.from_buffers(len(offsets) - 1, *buffers)
