"""The candidates of users on the host and on a device against plain Python; wrong lists; how often a host waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conf.errors import DataError
from scoring.model import predictor as predictor_module
from scoring.model.launch_ahead import launch_ahead
from scoring.ranking import recommender as module
from scoring.ranking.pair_scorer import PairScorer
from scoring.ranking.pairs import CandidateLists
from scoring.ranking.recommender import ListRanker
from tests.checked_device import checked_device
from tests.scoring.ranking.test_history_lists import ITEMS, USERS, recommender_of, sides
from tests.scoring.ranking.test_recommender import batch_of, lists_of

LIST = pa.list_(pa.int32())
Given = list[list[int] | None]


@st.composite
def given_lists(draw: Any) -> tuple[int, Given, Given]:
    """A number of items, and candidates and excluded items of users; excluded items may be repeated."""
    items = draw(st.integers(1, 12))
    index = st.integers(0, items - 1)
    listed = st.none() | st.lists(index, unique=True, max_size=items)
    excluded = st.none() | st.lists(index, max_size=2 * items)
    users = draw(st.integers(1, 9))
    lists = (draw(st.lists(one, min_size=users, max_size=users)) for one in (listed, excluded))
    return (items, *lists)


def candidates_of(lists: CandidateLists, users: slice) -> tuple[dict[int, list[int]], set[int]]:
    """The candidates of each user, and the users who are scored against all items."""
    asked = lists.of(users)
    num_items = lists._num_items
    kept = np.ones((len(asked.everyone), num_items), dtype=bool)
    user, item = (tensor.cpu().numpy() for tensor in asked.excluded)
    kept[user, item] = False
    kept[asked.chosen] = asked.wanted.cpu().numpy()
    found = {int(user): np.flatnonzero(row).tolist() for user, row in zip(asked.everyone, kept, strict=True)}
    flat, ends = asked.items.tolist(), np.cumsum(asked.lengths)
    assert len(flat) == asked.lengths.sum()
    found |= {
        int(user): flat[end - length : end]
        for user, end, length in zip(asked.listed, ends, asked.lengths, strict=True)
    }
    return found, {int(user) for user in asked.everyone}


@given(given_lists(), st.booleans(), st.integers(1, 4), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("on_device", [False, True])
def test_candidates_are_the_lists_or_all_other_items(
    on_device: bool, drawn: tuple[int, Given, Given], keep_lists: bool, width: int, skipped: int
) -> None:
    items, listed, excluded = drawn
    mine, gone = (pa.array([None] * skipped + values, LIST).slice(skipped) for values in (listed, excluded))
    with checked_device() if on_device else nullcontext((torch.device("cpu"), None)) as (device, checks):
        names = pa.array([f"u{user}" for user in range(len(listed))])
        lists = CandidateLists(names, mine, gone, items, keep_lists=keep_lists).to(device)
        for first in range(0, len(listed), width):
            users = slice(first, min(first + width, len(listed)))
            if checks is not None:
                waits = sum(checks.waits.values())
                lists.of(users)
                assert sum(checks.waits.values()) == waits
            found, everyone = candidates_of(lists, users)
            for place, user in enumerate(range(users.start, users.stop)):
                given, left_out = listed[user], excluded[user] or []
                others = [item for item in range(items) if item not in left_out]
                wanted = others if given is None else given
                count = items - len(left_out) if given is None else len(given)
                assert (place in everyone) == (not keep_lists and 3 * count >= 2 * items)
                assert found[place] == (sorted(wanted) if place in everyone else wanted)
        assert lists.wrong is None or not bool(lists.wrong)
        most = [items if given is None else len(given) for given in listed]
        assert lists.most().tolist() == most


@pytest.mark.parametrize(
    "listed, excluded, text",
    [
        ([[1], [3, 3], [9]], None, "candidates of user u1 contain an item twice"),
        ([[1], [9, 9], [3, 3]], None, r"user u1 are from 9 to 9, but there are 5"),
        ([[1], [2], [4, -2]], None, r"user u2 are from -2 to 4, but there are 5"),
        ([None, [2], None], [[1], [77], [4, 5]], r"user u2 are from 4 to 5, but there are 5"),
        ([None, [2, 2], None], [[1], None, [4, 5]], "candidates of user u1 contain an item twice"),
    ],
)
@pytest.mark.parametrize("on_device", [False, True])
def test_the_first_wrong_list_is_refused(
    on_device: bool, listed: Given, excluded: Given | None, text: str
) -> None:
    candidates, gone = (pa.array(values, LIST) for values in (listed, excluded or [None] * 3))
    with checked_device() if on_device else nullcontext((torch.device("cpu"), None)) as (device, _):
        lists = CandidateLists(pa.array(["u0", "u1", "u2"]), candidates, gone, 5).to(device)
        assert lists.wrong is None or bool(lists.wrong)
        with pytest.raises(DataError, match=text):
            lists.require_right(slice(0, 3))
        lists.require_right(slice(0, 1))
        if not on_device:
            with pytest.raises(DataError, match=text):
                lists.of(slice(0, 3))


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ListRanker, Any]]:
    """A recommender on the device, and the checks of the device."""
    monkeypatch.setattr(module, "_MIN_PLACES", 60)
    with checked_device() as (device, checks):
        monkeypatch.setattr(predictor_module, "choose_device", lambda *_: device)
        yield recommender_of("dlrm", tmp_path), checks


def test_the_host_waits_once_for_each_block_of_users(
    there: tuple[ListRanker, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recommender, checks = there
    draw = np.random.default_rng(4)
    listed: Given = [draw.permutation(ITEMS)[: user % 13].tolist() for user in range(USERS)]
    listed[5] = listed[20] = None
    batch = batch_of(sides()[0], listed)
    of_parts: Counter[str] = Counter()
    user_parts = PairScorer.user_parts

    def counted(scorer: PairScorer, inputs: Any) -> Any:
        before = Counter(checks.waits)
        parts = user_parts(scorer, inputs)
        of_parts.update(checks.waits - before)  # without kernels, lookups of lists of ids wait
        return parts

    monkeypatch.setattr(PairScorer, "user_parts", counted)
    before = Counter(checks.waits)
    blocks = len(list(recommender.recommend(batch)))
    assert blocks >= 3
    assert checks.waits - before - of_parts == {"aten.copy_.default": blocks}


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda listed: listed[-1].append(ITEMS), "candidate indices of user"),
        (lambda listed: listed[-1].append(listed[-1][0]), "contain an item twice"),
    ],
)
def test_lists_before_a_wrong_one_are_made(there: tuple[ListRanker, Any], change: Any, text: str) -> None:
    recommender, _ = there
    listed: Given = [[user % ITEMS] for user in range(USERS)]
    change(listed)
    made: list[pa.RecordBatch] = []
    with pytest.raises(DataError, match=text):
        made.extend(recommender.recommend(batch_of(sides()[0], listed)))
    assert sum(lists.num_rows for lists in made) >= 16
    listed[-1] = [1]
    assert len(lists_of(recommender, batch_of(sides()[0], listed))) == USERS


def test_a_nan_is_named_although_it_is_found_late(there: tuple[ListRanker, Any]) -> None:
    recommender, _ = there
    users = sides()[0]
    name = next(column for column in users.columns if users[column].dtype == np.float32)
    users.loc[30, name] = np.nan
    with pytest.raises(DataError, match=rf"user {users.user_key[30]} with item .* as NaN"):
        lists_of(recommender, batch_of(users))


def test_batches_together_have_the_lists_of_each_batch(tmp_path: Path) -> None:
    recommender = recommender_of("dlrm", tmp_path)
    batches = [
        batch_of(sides()[0], [[user % ITEMS] for user in range(USERS)]).slice(at, 9) for at in (0, 9, 30)
    ]
    together = pa.Table.from_batches(recommender.recommend_all(iter(batches)))
    one_by_one = pa.Table.from_batches(rows for batch in batches for rows in recommender.recommend(batch))
    assert together.equals(one_by_one)


@given(st.integers(0, 6), st.integers(0, 3), st.integers(0, 6), st.sampled_from(["item", "launch", "finish"]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_errors_come_after_all_earlier_results(count: int, ahead: int, wrong: int, where: str) -> None:
    """As if each item was finished before the next one begins; and few items are launched ahead."""
    launched: list[int] = []

    def fail(number: int, here: str) -> int:
        if number == wrong and here == where:
            raise ValueError(number)
        return number

    def items() -> Iterator[int]:
        yield from (fail(number, "item") for number in range(count))

    def launch(number: int) -> int:
        launched.append(fail(number, "launch"))
        return number

    results: list[int] = []
    with pytest.raises(ValueError, match=str(wrong)) if wrong < count else nullcontext():
        for result in launch_ahead(items(), launch, lambda number: fail(number, "finish"), ahead):
            results.append(result)
            assert len(launched) - len(results) <= ahead
    assert results == list(range(min(wrong, count)))
