"""Measures of ranked lists, such as NDCG@k.

A list is a group of rows, such as the ads of one display, or a list of items. In a group of rows, rows are
ranked by descending score. Ties are broken to the disadvantage of the model: among rows with equal scores,
rows without a click come first. So a model with a constant score gets the lowest possible value. A measure
does not depend on the order of rows or on the number of processes. Groups without a click are left out of the
mean over groups, because every ranking of their rows is equally good.

A list of items is compared with the relevant items of its user. The list need not contain these items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from conf.errors import ConfigError, DataError
from metrics.clicks import Vector, vectors


class Hits(NamedTuple):
    """The M relevant entries among the first k entries of G lists. Each list has a relevant entry.

    For groups of rows, a list is a group, and its relevant entries are the clicked rows.

    Attributes:
        group: (M,) index of the entry's list among the G lists.
        position: (M,) position of the entry in its list; 1 is the first position.
        nth: (M,) number of relevant entries in the list up to this position, including this entry.
        clicks: (G,) number of relevant entries of each list, including those that are not in its first k
            entries.
    """

    group: NDArray[np.int64]
    position: NDArray[np.int64]
    nth: NDArray[np.int64]
    clicks: NDArray[np.int64]

    def sums(self, values: Vector) -> Vector:
        """Adds up `values`, which has one value per entry, over the entries of each list: (G,)."""
        return np.bincount(self.group, weights=values, minlength=len(self.clicks)).astype(np.float64)


def map_at_k(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, k: int) -> float:
    """Returns the mean over groups of the average precision of their first k rows (`average_precisions`).

    Args:
        labels: (N,) 1 for a click, otherwise 0.
        scores: (N,) finite numbers; a higher score means that a click is more likely.
        groups: (N,) the group of each row, of any type that can be sorted.
        k: number of positions that are measured, from the first.

    Raises:
        DataError: lengths differ, a score is not finite, a label is neither 0 nor 1, a group is missing,
            groups have different types, or no group has a click.
        ConfigError: k is not a positive integer.
    """
    return float(np.mean(average_precisions(_clicked(labels, scores, groups, k), k)))


def ndcg_at_k(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, k: int) -> float:
    """Returns the mean over groups of the normalised discounted cumulative gain of their first k rows.

    The gain is that of `normalized_gains`. Arguments and errors are those of `map_at_k`.
    """
    return float(np.mean(normalized_gains(_clicked(labels, scores, groups, k), k)))


def average_precisions(hits: Hits, k: int) -> Vector:
    """Returns the average precision of each list, (G,).

    AP@k = Σ_{i ≤ k} relevant_i · precision(i) / min(r, k), as in Kaggle's Outbrain competition and in RecBole
    (recbole/evaluator/metrics.py, class MAP). Here precision(i) is the share of relevant entries among the
    first i entries, and r is the number of relevant entries. If there is only one relevant entry, AP@k is 1 /
    (its position), or 0 if this position is after k.
    """
    return hits.sums(hits.nth / hits.position) / np.minimum(hits.clicks, k)


def normalized_gains(hits: Hits, k: int) -> Vector:
    """Returns the NDCG of each list, (G,).

    It is DCG@k divided by the DCG@k of a ranking with all relevant entries first (Järvelin and Kekäläinen
    2002; RecBole, class NDCG). Here DCG@k = Σ_{i ≤ k} relevant_i / log2(i + 1).
    """
    most = min(k, int(hits.clicks.max()))
    ideal = np.cumsum(1 / np.log2(np.arange(most) + 2))
    return hits.sums(1 / np.log2(hits.position + 1)) / ideal[np.minimum(hits.clicks, k) - 1]


def reciprocal_ranks(hits: Hits, k: int) -> Vector:
    """Returns 1 / (position of the first relevant entry) of each list, (G,); 0 if the first k have none.

    This is RecBole's class MRR.
    """
    return hits.sums((hits.nth == 1) / hits.position)


def recalls(hits: Hits, k: int) -> Vector:
    """Returns, for each list, the share of its relevant entries that are among its first k entries, (G,).

    This is RecBole's class Recall.
    """
    return hits.sums(np.ones(len(hits.group))) / hits.clicks


def precisions(hits: Hits, k: int) -> Vector:
    """Returns the number of relevant entries among the first k of each list, divided by k, (G,).

    This is RecBole's class Precision. The divisor is k even if a list has fewer than k entries.
    """
    return hits.sums(np.ones(len(hits.group))) / k


def any_hits(hits: Hits, k: int) -> Vector:
    """Returns 1 for each list with a relevant entry among its first k, and otherwise 0, (G,).

    This is RecBole's class Hit.
    """
    return hits.sums((hits.nth == 1).astype(np.float64))


def require_k(k: int) -> None:
    """Raises ConfigError if k is not a positive integer of 64 bits."""
    if not isinstance(k, Integral) or isinstance(k, bool):
        raise ConfigError(f"k={k!r} is not an integer", "measure at a k of 1 or more")
    if not 1 <= k < 2**63:
        problem = f"k={k} is below 1" if k < 1 else f"k={k} is above 2**63 - 1"
        raise ConfigError(problem, "measure at a k of 1 or more")


def _clicked(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, k: int) -> Hits:
    """Returns the clicks among the first k rows of each group by score; arguments as in `map_at_k`."""
    require_k(k)
    order, label, group = _ranked(labels, scores, groups)
    label, group = label[order], group[order]
    first = np.flatnonzero(np.diff(group, prepend=-1))  # first row of each group
    clicks = np.add.reduceat(label, first).astype(np.int64)
    sizes = np.diff(first, append=len(group))
    position = np.arange(len(group)) - np.repeat(first, sizes) + 1
    before = np.cumsum(label) - label  # number of clicks above each row, over all groups
    nth = (before - np.repeat(before[first], sizes)).astype(np.int64) + 1
    counted = (label == 1) & (position <= k)
    dense = np.cumsum(clicks > 0) - 1  # index of each group among the groups with a click
    return Hits(dense[group[counted]], position[counted], nth[counted], clicks[clicks > 0])


def _ranked(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike
) -> tuple[NDArray[np.int64], Vector, NDArray[np.int64]]:
    """Returns the order that ranks the rows of each group, and the labels and groups of all rows.

    Groups are indices. All three arrays have the shape (N,). Arguments and errors are those of `map_at_k`.
    """
    label, score, _ = vectors(labels, scores)
    group = _as_numbers(groups, label)
    return np.lexsort((label, -score, group)), label, group


def _as_numbers(groups: ArrayLike, label: Vector) -> NDArray[np.int64]:
    """Returns, for each of N rows, the index of its group among all groups in sorted order: (N,) int64."""
    group = plain_array(groups)
    if group.shape != label.shape:
        raise DataError(
            f"groups {group.shape} and labels {label.shape} differ in length", "pass one group per row"
        )
    if not np.isin(label, (0, 1)).all():
        raise DataError("the labels of a ranking must be 0 or 1", "convert the label to 0 or 1 first")
    if not label.any():
        raise DataError(
            f"no group among {len(label)} rows has a click, so there is no ranking to measure",
            "measure on a split with clicks, for example by adding days to the split",
        )
    return distinct_index("groups", group)


def plain_array(values: ArrayLike) -> NDArray[Any]:
    """Returns values as an array. Numbers in a list that also contains strings stay numbers.

    NumPy alone would convert them to strings: NaN would become the string `nan`.
    """
    return np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)


def distinct_index(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the index of each of N values among the distinct values in ascending order: (N,).

    Args:
        name: the name of the values, for messages.
        values: (N,) values of one type that can be sorted.

    Raises:
        DataError: values are missing, or have different types.
    """
    try:
        missing = pa.array(values, from_pandas=True).null_count
        if not missing:
            return np.unique(values, return_inverse=True)[1].astype(np.int64)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise DataError(f"{name} have different types: {error}", "convert them to one type") from error
    raise DataError(f"{missing} of {len(values)} {name} are missing", "leave these rows out")


# The code below reads lists of items, and the items that are relevant to the users of these lists.

Ids = NDArray[Any]
_NUMBERS, _TEXTS = "an integer", "a string"


class IdLists(NamedTuple):
    """U lists of ids, one after the other.

    Attributes:
        lengths: (U,) number of ids of each list.
        ids: (N,) the ids of all lists: integers or strings.
    """

    lengths: NDArray[np.int64]
    ids: Ids

    @property
    def owner(self) -> NDArray[np.int64]:
        """Returns, for each id, the index of its list: (N,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def position(self) -> NDArray[np.int64]:
        """Returns, for each id, its position in its list, from 1: (N,)."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.ids)) - np.repeat(starts, self.lengths) + 1


def read_lists(name: str, lists: Iterable[ArrayLike]) -> IdLists:
    """Returns lists of ids. A list may be empty.

    Args:
        name: the name of the argument, for messages.
        lists: U lists of integers or of strings, such as the rows of an array.

    Raises:
        DataError: an id is missing, or is neither an integer nor a string; or ids have both types, or do not
            fit into one type of integers; or a list is not one-dimensional.
    """
    if isinstance(lists, str | bytes):
        raise DataError(f"{name} is a string, not lists of ids", "pass one list of ids for each user")
    arrays = [_ids_of(name, ids) for ids in lists]
    filled = [array for array in arrays if len(array)]
    kinds = sorted({_kind(array) for array in filled})
    if len(kinds) > 1:
        raise DataError(f"{name} has ids of two types: {kinds}", "convert all ids to one type")
    lengths = np.array([len(array) for array in arrays], np.int64)
    return IdLists(lengths, _joined(filled))


def _joined(arrays: Sequence[Ids]) -> Ids:
    """Returns the ids of arrays, all of them integers or all of them strings, as one array.

    NumPy alone would convert unsigned and signed integers to float64, in which large ids become equal.

    Raises:
        DataError: neither int64 nor uint64 contains all ids.
    """
    if not arrays:
        return np.zeros(0, np.int64)
    if {array.dtype.kind for array in arrays} == {"i", "u"}:
        low, high = min(int(array.min()) for array in arrays), max(int(array.max()) for array in arrays)
        bounds = {dtype: np.iinfo(dtype) for dtype in (np.int64, np.uint64)}
        fitting = [dtype for dtype, of in bounds.items() if of.min <= low and high <= of.max]
        if not fitting:
            raise DataError(
                f"the ids {low} and {high} do not fit into one type of integers of 64 bits",
                "pass ids that are all below 2**63 or all not negative, or convert all ids to strings",
            )
        arrays = [array.astype(fitting[0]) for array in arrays]
    return np.concatenate(arrays)


def _ids_of(name: str, ids: ArrayLike) -> Ids:
    array = plain_array(ids)
    if array.ndim != 1:
        raise DataError(f"{name} contains {ids!r}, which is not a list of ids", "pass one list for each user")
    if array.dtype == object:
        array = _of_one_type(name, array)
    if len(array) and array.dtype.kind not in "iuUS":
        raise DataError(
            f"{name} contains ids of the type {array.dtype}, such as {array[0]!r}",
            "pass integers or strings without missing values",
        )
    return array


def _of_one_type(name: str, values: NDArray[Any]) -> Ids:
    """Converts an array of objects to an array of integers or of strings.

    Raises:
        DataError: a value is missing, or is neither an integer nor a string, or values have both types.
    """
    kinds = {kind: _kind_of_object(kind) for kind in set(map(type, values))}
    wrong = [value for value in values if kinds[type(value)] is None]
    if wrong:
        raise DataError(
            f"{name} contains {wrong[0]!r} of the type {type(wrong[0]).__name__} in a list of ids",
            "pass integers or strings without missing values",
        )
    if len(set(kinds.values())) > 1:
        raise DataError(f"{name} has a list with ids of two types", "convert all ids to one type")
    return np.array(values.tolist())


def _kind_of_object(kind: type) -> str | None:
    """Returns which kind of id (text or number) the objects of a class are; None if they cannot be ids."""
    if issubclass(kind, str | bytes):
        return _TEXTS
    return _NUMBERS if issubclass(kind, int | np.integer) and kind is not bool else None


def _kind(array: Ids) -> str:
    return _NUMBERS if array.dtype.kind in "iu" else _TEXTS


def numbered(names: Sequence[str], lists: Sequence[IdLists]) -> list[IdLists]:
    """Returns the same lists, with each id replaced by a number, from 0.

    Equal ids have equal numbers in all lists.

    Raises:
        DataError: ids of two of the lists have different types, or do not fit into one type of integers.
    """
    kinds = {name: _kind(one.ids) for name, one in zip(names, lists, strict=True) if len(one.ids)}
    if len(set(kinds.values())) > 1:
        raise DataError(f"the ids have different types: {kinds}", "convert all ids to one type")
    filled = [one.ids for one in lists if len(one.ids)] or [np.zeros(0, np.int64)]
    index = iter(np.split(np.unique(_joined(filled), return_inverse=True)[1], _ends(filled)))
    empty = np.zeros(0, np.int64)
    return [IdLists(one.lengths, next(index).astype(np.int64) if len(one.ids) else empty) for one in lists]


def _ends(arrays: Sequence[Ids]) -> NDArray[np.int64]:
    return np.cumsum([len(array) for array in arrays])[:-1]


def distinct_pairs(lists: IdLists) -> IdLists:
    """Returns lists of numbers without repeated numbers, in ascending order."""
    width = int(lists.ids.max(initial=0)) + 1
    pairs = np.unique(lists.owner * width + lists.ids)
    return IdLists(np.bincount(pairs // width, minlength=len(lists.lengths)), pairs % width)


def require_distinct(name: str, lists: IdLists, ids: Ids) -> None:
    """Raises DataError if a list of numbers has a number twice. Each number represents one id of `ids`."""
    order = np.lexsort((lists.ids, lists.owner))
    owner, number = lists.owner[order], lists.ids[order]
    twice = np.flatnonzero((owner[1:] == owner[:-1]) & (number[1:] == number[:-1]))
    if len(twice):
        first = order[twice[0]]
        raise DataError(
            f"{name}: list {lists.owner[first]} has {ids[first]!r} twice", "list each item once for a user"
        )


def hits_of_lists(
    recommended: Iterable[ArrayLike], relevant: Iterable[ArrayLike], k: int
) -> tuple[Hits, NDArray[np.bool_]]:
    """Returns the relevant items in the lists of U users, and (U,) whether each user has relevant items.

    Args:
        recommended: U lists of distinct ids, the best item first. A list may be empty.
        relevant: the ids of the relevant items of the same U users. Repeated ids count once.
        k: number of positions that are measured, from the first.

    Raises:
        ConfigError: k is not a positive integer.
        DataError: the numbers of users differ; a list has an id twice; an id is missing, or is neither an
            integer nor a string, or ids have different types; or no user has a relevant item.
    """
    require_k(k)
    names = ("recommended", "relevant")
    lists = read_lists(names[0], recommended), read_lists(names[1], relevant)
    if len(lists[0].lengths) != len(lists[1].lengths):
        raise DataError(
            f"there are {len(lists[0].lengths)} lists, and relevant items of {len(lists[1].lengths)} users",
            "pass one list and its relevant items for each user, in the same order",
        )
    listed, wanted = numbered(names, lists)
    require_distinct(names[0], listed, lists[0].ids)
    wanted = distinct_pairs(wanted)
    users = np.flatnonzero(wanted.lengths)
    if not len(users):
        raise DataError(
            f"none of {len(wanted.lengths)} users has a relevant item, so there is no list to measure",
            "measure with interactions that occurred after the lists were made",
        )
    width = int(max(listed.ids.max(initial=0), wanted.ids.max(initial=0))) + 1
    is_hit = np.isin(listed.owner * width + listed.ids, wanted.owner * width + wanted.ids)
    is_hit &= listed.position <= k
    owner, position = listed.owner[is_hit], listed.position[is_hit]
    group = np.searchsorted(users, owner)
    of_group = np.bincount(group, minlength=len(users))
    nth = np.arange(len(group)) - np.repeat(np.cumsum(of_group) - of_group, of_group) + 1
    return Hits(group, position, nth, wanted.lengths[users]), wanted.lengths > 0


def ranked_rows(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike) -> tuple[list[Ids], list[Ids]]:
    """Returns the rows of each group in the order of their scores, and the clicked rows of each group.

    Both are lists of indices of rows, one list per group, in sorted order of the groups. Arguments and errors
    are those of `map_at_k`.
    """
    order, label, group = _ranked(labels, scores, groups)
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))[1:]
    ranked = np.split(order, starts)
    return ranked, [rows[label[rows] == 1] for rows in ranked]
