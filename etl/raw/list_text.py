"""Divides texts into lists of elements, in Arrow arrays. Empty elements are left out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.raw.number_text import integers


def text_lists(text: pa.Array, separator: str) -> pa.Array:
    """Divides n texts at a separator. Returns lists of texts without empty texts; null stays null."""
    return without_elements(pc.split_pattern(text, separator), None)


def integer_lists(text: pa.Array, separator: str) -> pa.Array:
    """Does the same as `text_lists`, and converts elements to int64.

    The list is null if one of its elements is not an integer of 64 bits.
    """
    lists = text_lists(text, separator)
    elements = pc.list_flatten(lists)
    numbers = integers(elements)
    result = _with_elements(lists, numbers)
    if not numbers.null_count:
        return result
    wrong = np.zeros(len(lists), bool)
    wrong[np.asarray(pc.list_parent_indices(lists))[np.asarray(numbers.is_null())]] = True
    return pc.if_else(pa.array(wrong), pa.scalar(None, result.type), result)


def without_elements(lists: pa.Array, unwanted: pa.Array | None) -> pa.Array:
    """Returns lists without some elements.

    Args:
        lists: n lists, some of them null.
        unwanted: a boolean for each element of `pc.list_flatten(lists)`; None for null and empty texts.
    """
    flat = pc.list_flatten(lists)
    if unwanted is None:
        unwanted = pc.fill_null(pc.equal(flat, ""), True)
    dropped = np.asarray(unwanted)
    if not dropped.any():
        return _with_elements(lists, flat)
    parents = np.asarray(pc.list_parent_indices(lists))
    lengths = np.bincount(parents[~dropped], minlength=len(lists))
    return _lists(lengths, lists, flat.filter(pa.array(~dropped)))


def _with_elements(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Returns lists with the lengths and nulls of `lists`, and with these elements."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return _lists(lengths, lists, elements)


def _lists(lengths: np.ndarray, like: pa.Array, elements: pa.Array) -> pa.Array:
    """Returns lists of these lengths (n,), null where `like` is null."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    nulls = np.append(like.is_null().to_numpy(zero_copy_only=False), False)
    starts = pa.array(offsets, pa.int32(), mask=nulls) if nulls.any() else pa.array(offsets, pa.int32())
    return pa.ListArray.from_arrays(starts, elements)
