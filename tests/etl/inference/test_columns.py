"""The types of the columns of a sample, and what they mean."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from etl.inference.column_types import (
    SampledColumn,
    depends_on,
    has_local_times,
    micros_of,
    numbers_of,
    sampled_columns,
    unique_names,
    zone_of_days,
)
from etl.inference.roles import Roles, possible_events, possible_keys, roles_of
from etl.inference.sample import read_sample
from etl.inference.table_files import find_table

N = 400
RNG = np.random.default_rng(7)
USERS = [f"u{user}" for user in RNG.integers(0, 50, N)]
ITEMS = [f"{item:010d}" for item in RNG.integers(0, 40, N)]
SECONDS = 1_600_000_000 + np.arange(N) * 100


def _columns(tmp_path: Path, frame: pd.DataFrame, *, header: bool = True) -> dict[str, SampledColumn]:
    path = tmp_path / "log.csv"
    frame.to_csv(path, index=False, header=header)
    return {column.source: column for column in sampled_columns(read_sample(find_table(str(path))))}


def _roles(tmp_path: Path, frame: pd.DataFrame, *, header: bool = True) -> Roles:
    return roles_of([*_columns(tmp_path, frame, header=header).values()], len(frame), has_names=header)


TIMES = pd.to_datetime(SECONDS, unit="s")


@pytest.mark.parametrize(
    "values, kind, notation",
    [
        (TIMES.strftime("%Y-%m-%d %H:%M:%S"), "timestamp", "iso"),
        (TIMES.strftime("%Y-%m-%dT%H:%M:%SZ"), "timestamp", "iso"),
        (TIMES.strftime("%Y-%m-%d"), "date", "iso"),
        (TIMES.strftime("%d.%m.%Y %H:%M"), "timestamp", "%d.%m.%Y %H:%M"),
        (TIMES.strftime("%a %b %d %H:%M:%S +0000 %Y"), "timestamp", "%a %b %d %H:%M:%S %z %Y"),
        (TIMES.strftime("%Y-%m-%d %H:%M:%S UTC"), "timestamp", "%Y-%m-%d %H:%M:%S UTC"),
        (TIMES.strftime("%Y-%m-%d %H:%M:%S +0100"), "timestamp", "%Y-%m-%d %H:%M:%S %z"),
        (TIMES.strftime("%d/%m/%y"), "date", "%d/%m/%y"),
        (TIMES.strftime("%m/%d/%y"), "date", "%m/%d/%y"),
        (TIMES.strftime("%d.%m.%y"), "date", "%d.%m.%y"),
        (TIMES.strftime("%m/%d/%y %H:%M"), "timestamp", "%m/%d/%y %H:%M"),
        (TIMES.strftime("%d.%m.%y %H:%M:%S"), "timestamp", "%d.%m.%y %H:%M:%S"),
        (TIMES.strftime("%m/%d/%Y %I:%M %p"), "timestamp", "%m/%d/%Y %I:%M %p"),
        (TIMES.strftime("%m/%d/%y %I:%M:%S %p"), "timestamp", "%m/%d/%y %I:%M:%S %p"),
        (TIMES.strftime("%m/%d/%y %I:%M %p"), "timestamp", "%m/%d/%y %I:%M %p"),
    ],
)
def test_times_are_read_in_their_notation(tmp_path: Path, values: pd.Index, kind: str, notation: str) -> None:
    frame = pd.DataFrame({"user": USERS, "datum": values})
    column = _columns(tmp_path, frame)["datum"]
    assert (column.type, column.format) == (kind, notation)
    parsed = pd.to_datetime(values, format=None if notation == "iso" else notation, utc=True)
    expected = np.unique(parsed.astype("datetime64[us, UTC]").astype(np.int64))
    assert np.unique(micros_of(column)).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "values, kind, expected",
    [
        (pa.array([Decimal(one) for one in (7, 8, 9)], pa.decimal128(38, 0)), "int", [7, 8, 9]),
        (pa.array([Decimal(10**30)] * 3, pa.decimal128(38, 0)), "string", ["1" + "0" * 30] * 3),
        (pa.array([Decimal("1.50")] * 3, pa.decimal128(9, 2)), "decimal", [Decimal("1.50")] * 3),
        (pa.array([b"a", None, "ü".encode()]), "string", ["a", None, "ü"]),
        (pa.array([b"a", b"a", b"\xff"]), None, []),
        (pa.array([1.0, np.nan, None]), "float", [1.0, None, None]),
        (pa.array(["Y", "N", ""]), "bool", ["Y", "N", None]),
        (pa.array(["0", "1", "1"]), "bool", ["0", "1", "1"]),
        (pa.array(["1", "2", "1"]), "string", ["1", "2", "1"]),
    ],
    ids=["decimal", "long", "fraction", "bytes", "no text", "nan", "yes", "digits", "texts"],
)
def test_types_of_parquet(tmp_path: Path, values: pa.Array, kind: str | None, expected: list[object]) -> None:
    pq.write_table(pa.table({"x": values}), tmp_path / "log.parquet")
    columns = sampled_columns(read_sample(find_table(str(tmp_path / "log.parquet"))))
    assert [column.type for column in columns] == ([] if kind is None else [kind])
    assert [value for column in columns for value in column.values.to_pylist()] == expected


@pytest.mark.parametrize("place", [0, 3, 200])
@pytest.mark.parametrize(
    "values, kind, notation",
    [
        (TIMES.strftime("%Y-%m-%d %H:%M:%S"), "timestamp", "iso"),
        (pd.date_range("2026-01-01", periods=25).strftime("%Y-%m-%d").repeat(16), "date", "iso"),
        (pd.date_range("2026-01-01", periods=25).strftime("%m/%d/%Y").repeat(16), "date", "%m/%d/%Y"),
    ],
    ids=["times", "few dates", "month first"],
)
def test_one_wrong_time_is_allowed_anywhere(
    tmp_path: Path, values: pd.Index, kind: str, notation: str, place: int
) -> None:
    texts = [*values[:place], "0000-00-00 00:00:00", *values[place + 1 : N]]
    column = _columns(tmp_path, pd.DataFrame({"user": USERS, "when": texts}))["when"]
    assert (column.type, column.format) == (kind, notation)


def test_the_notation_of_most_times_is_taken(tmp_path: Path) -> None:
    """A single day after the 12th, in the first row, says that the month comes first."""
    days = pd.DatetimeIndex([pd.Timestamp("2026-01-13")] + [pd.Timestamp("2026-01-12")] * 399)
    texts = (days + pd.to_timedelta(np.arange(N), unit="min")).strftime("%m/%d/%Y %H:%M:%S")
    column = _columns(tmp_path, pd.DataFrame({"user": USERS, "when": texts}))["when"]
    assert column.format == "%m/%d/%Y %H:%M:%S"


@pytest.mark.parametrize(
    "days, notation, other",
    [
        (pd.date_range("2026-02-01", periods=10), "%m/%d/%Y", None),
        (pd.date_range("2026-02-01", periods=10), "%d/%m/%Y", None),
        (pd.DatetimeIndex(["2026-02-03"]), "%d/%m/%Y", "%m/%d/%Y"),
    ],
    ids=["month first", "day first", "one day"],
)
def test_dates_that_fit_two_notations_have_the_shorter_span(
    tmp_path: Path, days: pd.DatetimeIndex, notation: str, other: str | None
) -> None:
    texts = np.resize(days.strftime(notation), N)
    column = _columns(tmp_path, pd.DataFrame({"user": USERS, "when": texts}))["when"]
    assert (column.format, column.other_format) == (notation, other)


@pytest.mark.parametrize("notation", ["%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M"])
def test_dates_agree_with_the_days_of_their_files(tmp_path: Path, notation: str) -> None:
    for day in ("2026-02-03", "2026-03-02"):
        times = pd.to_datetime(day) + pd.to_timedelta(np.arange(100), unit="min")
        frame = pd.DataFrame({"user": USERS[:100], "when": times.strftime(notation)})
        frame.to_csv(tmp_path / f"{day}.csv", index=False)
    columns = sampled_columns(read_sample(find_table(str(tmp_path))))
    assert (columns[1].format, columns[1].other_format) == (notation, None)


@pytest.mark.parametrize("form", ["offset", "seconds", "stored", "utc"])
def test_the_zone_of_the_days_of_files_is_known(tmp_path: Path, form: str) -> None:
    zone = "UTC" if form == "utc" else "America/New_York"
    for day in pd.date_range("2026-02-01", periods=4):
        times = day.tz_localize(zone) + pd.to_timedelta(np.arange(0, 86_400, 300), unit="s")
        if form == "stored":
            pd.DataFrame({"at": times}).to_parquet(tmp_path / f"{day.date()}.parquet")
            continue
        seconds = times.astype("datetime64[s, UTC]").astype(np.int64)
        texts = seconds if form == "seconds" else [time.isoformat() for time in times]
        pd.DataFrame({"user": "u", "at": texts}).to_csv(tmp_path / f"{day.date()}.csv", index=False)
    sample = read_sample(find_table(str(tmp_path)))
    days = zone_of_days(sampled_columns(sample)[-1], sample)
    if form == "utc":
        assert days is None
        return
    assert days is not None
    assert days.outside == pytest.approx(5 / 24, abs=0.01)
    assert days.stored == (zone if form == "stored" else None)
    assert days.zones == (zone, "Etc/GMT+5")


def test_a_frequent_time_does_not_make_a_column_of_times(tmp_path: Path) -> None:
    texts = ["2026-01-01"] * (N - 3) + ["never", "soon", "later"]
    assert _columns(tmp_path, pd.DataFrame({"user": USERS, "when": texts}))["when"].type == "string"


@pytest.mark.parametrize(
    "name, values, kind, notation",
    [
        ("x", TIMES.strftime("%H:%M:%S"), "time", "iso"),
        ("x", TIMES.strftime("%I:%M %p"), "time", "%I:%M %p"),
        ("Uhrzeit", ["9:05", "13:45"] * (N // 2), "time", "%H:%M"),
        ("sale_time", TIMES.strftime("%H%M%S"), "time", "%H%M%S"),
        ("result", ["3:1", "0:2"] * (N // 2), "string", "iso"),
        ("code", TIMES.strftime("%H%M%S"), "int", "iso"),
        ("release_time", ["2015", "2003"] * (N // 2), "int", "iso"),
    ],
)
def test_times_of_day_have_no_date(
    tmp_path: Path, name: str, values: pd.Index | list[str], kind: str, notation: str
) -> None:
    column = _columns(tmp_path, pd.DataFrame({"user": USERS, name: values}))[name]
    assert (column.type, column.format, column.is_time) == (kind, notation, False)


@pytest.mark.parametrize(
    "values, is_local",
    [
        (TIMES.strftime("%Y-%m-%d %H:%M:%S"), True),
        (TIMES.strftime("%Y-%m-%d"), True),
        (TIMES.strftime("%d.%m.%Y %H:%M"), True),
        (TIMES.strftime("%Y-%m-%dT%H:%M:%S.123Z"), False),
        (TIMES.strftime("%Y-%m-%dT%H:%M:%S+0200"), False),
        (TIMES.strftime("%Y-%m-%d %H:%M:%S UTC"), False),
        (SECONDS, False),
    ],
)
def test_times_without_an_offset_are_local(tmp_path: Path, values: pd.Index, is_local: bool) -> None:
    column = _columns(tmp_path, pd.DataFrame({"user": USERS, "time": values}))["time"]
    assert has_local_times(column) == is_local


def test_dates_are_completed_by_times_of_day(tmp_path: Path) -> None:
    day, clock = TIMES.strftime("%d.%m.%Y"), TIMES.strftime("%H:%M")
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "day": day, "seen": clock, "time": clock})
    roles = _roles(tmp_path, frame)
    assert roles.time_of_day is not None
    assert (roles.time[0].source, roles.time_of_day.source) == ("day", "time")
    assert _roles(tmp_path, frame.assign(at=TIMES)).time_of_day is None
    same_day = _roles(tmp_path, frame.assign(day="01.02.2026"))
    assert [one.source for one in same_day.time] == ["day"]
    assert not _roles(tmp_path, frame.assign(day="01.02.2026").drop(columns=["seen", "time"])).time
    stored = frame.assign(day=TIMES.normalize(), time=TIMES.time).drop(columns="seen")
    stored.to_parquet(tmp_path / "log.parquet")
    columns = sampled_columns(read_sample(find_table(str(tmp_path / "log.parquet"))))
    roles = roles_of(columns, N, has_names=True)
    assert roles.time_of_day is not None
    assert (roles.time[0].source, roles.time_of_day.source) == ("day", "time")


@pytest.mark.parametrize(
    "name, texts, is_possible",
    [
        ("branch", ["hull", "york"], False),
        ("Filiale", ["hull", "york"], False),
        ("xyz", ["ansicht", "korb"], True),
        ("xyz", ["VIEWED", "BOUGHT"], True),
        ("xyz", ["Leeds North", "York"], False),
        ("xyz", ["a1", "a2"], False),
        ("xyz", ["DE", "PL"], False),
        ("row_type", ["Ansicht", "Kauf"], True),
        ("store_type", ["large", "small"], False),
        ("Ereignis", ["Ansicht", "Kauf 2"], True),
        ("store_event", ["A", "B"], True),
    ],
)
def test_names_and_texts_show_whether_a_column_may_have_events(
    tmp_path: Path, name: str, texts: list[str], is_possible: bool
) -> None:
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, name: RNG.choice(texts, N)})
    columns = [*_columns(tmp_path, frame).values()]
    assert [one.source for one in possible_events(columns, [])] == ([name] if is_possible else [])


def test_what_depends_on_an_id_is_no_event(tmp_path: Path) -> None:
    receipts = RNG.integers(0, N // 5, N)
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "bon": [f"b{one}" for one in receipts]})
    frame["xyz"] = np.where(receipts % 3 == 0, "north", "south")
    frame["rare"] = np.where(np.arange(N) % 100 == 7, "bought", "viewed")
    columns = _columns(tmp_path, frame)
    assert [one.source for one in possible_events([*columns.values()], [])] == ["rare"]
    assert depends_on(columns["xyz"], columns["bon"])
    assert not depends_on(columns["xyz"], columns["user"])
    # 99% of the rows have the same value, but no key explains the others.
    assert not any(depends_on(columns["rare"], columns[key]) for key in ("user", "item", "bon"))


def test_decimal_commas_are_numbers_and_one_table_has_one_notation(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "user": USERS,
            "price": [f"{row},5" for row in range(N)],
            "cost": [f"{1 + row}.{row:03d},25" for row in range(N)],
        }
    )
    columns = _columns(tmp_path, frame)
    assert (columns["price"].type, columns["price"].has_comma) == ("float", True)
    assert numbers_of(columns["price"].values).tolist() == [row + 0.5 for row in range(N)]
    assert columns["price"].examples[0] == "0,5"  # as in the file
    assert numbers_of(columns["cost"].values).tolist() == [1000 * (1 + row) + row + 0.25 for row in range(N)]
    columns = _columns(tmp_path, frame.assign(weight=1.5, length=2.5))
    assert [(columns[name].type, columns[name].has_comma) for name in ("price", "weight")] == [
        ("string", False),
        ("float", False),
    ]


@pytest.mark.parametrize("unit, factor", [("s", 1), ("ms", 1_000), ("us", 10**6), ("ns", 10**9)])
def test_integers_since_1970_have_a_unit(tmp_path: Path, unit: str, factor: int) -> None:
    column = _columns(tmp_path, pd.DataFrame({"user": USERS, "time": SECONDS * factor}))["time"]
    assert (column.type, column.unit) == ("int", unit)
    assert micros_of(column).tolist() == (SECONDS * 10**6).tolist()


def test_ids_in_the_range_of_times_are_no_times(tmp_path: Path) -> None:
    assert _columns(tmp_path, pd.DataFrame({"user_id": SECONDS, "x": USERS}))["user_id"].unit is None


@pytest.mark.parametrize(
    "values, kind",
    [
        ([1985.0, None] * (N // 2), "int"),
        ([0.5, 3.25] * (N // 2), "float"),
        (["True", "False"] * (N // 2), "bool"),
        (ITEMS, "string"),  # zeros in front
        ([str(10**20 + value) for value in range(N)], "string"),
        (["Action|Drama", "Drama"] * (N // 2), "list<string>"),
        (["red wine", "tea"] * (N // 2), "string"),
        (["7.12.20", "8.1.21"] * (N // 2), "string"),  # versions
    ],
)
def test_types_of_values(tmp_path: Path, values: list[object], kind: str) -> None:
    assert _columns(tmp_path, pd.DataFrame({"user": USERS, "column": values}))["column"].type == kind


def test_texts_for_null_are_null_where_other_values_are_numbers(tmp_path: Path) -> None:
    frame = pd.DataFrame({"price": ["1.5", "NULL", "-", ""] * (N // 4), "word": ["-", "a"] * (N // 2)})
    columns = _columns(tmp_path, frame)
    assert (columns["price"].type, columns["price"].nulls) == ("float", 3 * N // 4)
    assert set(columns["price"].null_texts) == {"NULL", "-"}
    assert (columns["word"].type, columns["word"].nulls) == ("string", 0)


def test_roles_by_name(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "order_id": range(N),
            "product_name": [f"name {item}" for item in ITEMS],
            "productId": ITEMS,
            "customer_id": USERS,
            "birth_date": ["1980-01-01", "1990-02-02"] * (N // 2),
            "created_at": TIMES,
            "event_type": ["view", "cart", "purchase", "remove_from_cart"] * (N // 4),
        }
    )
    roles = _roles(tmp_path, frame)
    assert [roles.user[0].source, roles.item[0].source] == ["customer_id", "productId"]
    assert [column.source for column in roles.time] == ["created_at"]
    assert roles.label.weights == {"view": 0.1, "cart": 0.5, "purchase": 1.0}
    assert roles.label.left_out == ("remove_from_cart",)
    assert not roles.label.has_shown


def test_roles_by_order(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": USERS, "b": ITEMS, "c": ["pv", "buy"] * (N // 2), "d": SECONDS})
    roles = _roles(tmp_path, frame, header=False)
    assert [roles.user[0].source, roles.item[0].source, roles.time[0].source] == ["c1", "c2", "c4"]
    assert roles.label.column is not None
    assert roles.label.column.source == "c3"


@pytest.mark.parametrize(
    "name, values, at_least, has_shown",
    [
        ("rating", [1, 3, 4, 5], 4.0, False),
        ("score", [2, 7, 9, 10], 8.0, False),
        ("clicked", [0, 1, 0, 1], None, True),
        ("watch_ratio", [0.1, 0.5, 1.5, 2.0], 0.8, False),
        ("event", ["impression", "click", "impression", "impression"], None, True),
        ("type", ["impressions", "clicks", "impressions", "impressions"], None, True),
    ],
)
def test_labels(
    tmp_path: Path, name: str, values: list[object], at_least: float | None, has_shown: bool
) -> None:
    label = _roles(tmp_path, pd.DataFrame({"user": USERS, "item": ITEMS, name: values * (N // 4)})).label
    assert label.column is not None
    assert (label.column.source, label.positive_at_least, label.has_shown) == (name, at_least, has_shown)


@pytest.mark.parametrize(
    "name, texts, others, column",
    [
        ("content_type", ["article", "gallery", "live stream"], {"clicked": [0, 1]}, "clicked"),
        ("content_type", ["article", "gallery", "live stream"], {}, None),
        ("content_type", ["article", "live stream"], {"clicked": [0, 1]}, "clicked"),
        ("source_type", ["album", "listen-with", "radio"], {"target": [0, 1]}, "target"),
        ("content_type", ["article", "live stream"], {"rating": [1, 5]}, "rating"),
        ("device_type", ["phone", "watch"], {}, None),
        ("content_type", ["article", "live stream"], {}, "content_type"),
        ("row_type", ["view", "cart"], {}, "row_type"),
        ("type", ["view", "cart"], {"clicked": [0, 1]}, "type"),
        ("event_type", ["view", "search", "scroll"], {"clicked": [0, 1]}, "event_type"),
    ],
)
def test_a_word_for_an_event_is_no_proof_of_events(
    tmp_path: Path, name: str, texts: list[str], others: dict[str, list[int]], column: str | None
) -> None:
    """A column of 0 and 1 or of ratings is preferred to a column whose name does not only mean events."""
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, name: RNG.choice(texts, N)})
    label = _roles(
        tmp_path, frame.assign(**{other: RNG.choice(two, N) for other, two in others.items()})
    ).label
    assert (label.column and label.column.source) == column
    assert label.is_certain == (column not in ("content_type", "row_type"))


def test_a_verified_purchase_is_no_label(tmp_path: Path) -> None:
    """As in the reviews of Amazon, whose rating is the label."""
    frame = pd.DataFrame({"rating": RNG.choice([1.0, 3.0, 5.0], N), "user_id": USERS, "asin": ITEMS})
    frame["verified_purchase"] = RNG.choice([True, False], N)
    label = _roles(tmp_path, frame).label
    assert label.column is not None
    assert (label.column.source, label.positive_at_least) == ("rating", 4.0)
    assert _roles(tmp_path, frame.drop(columns="rating")).label.column is None


def test_a_text_that_depends_on_the_item_is_no_event(tmp_path: Path) -> None:
    frame = pd.DataFrame({"user": USERS, "item": ITEMS})
    frame["content_type"] = np.where(frame["item"].astype(int) % 2 == 0, "article", "live stream")
    assert _roles(tmp_path, frame).label.column is None


@pytest.mark.parametrize(
    "events, weights",
    [
        (["play.start", "play.complete", "episode_download"], [0.1, 0.5, 0.5]),
        (["Product Viewed", "Product Added", "Order Completed", "Cart Removed"], [0.1, None, 1.0, None]),
        (["userClicked", "userPurchase", "purchaseCancelled"], [0.1, 1.0, None]),
        (["clicks", "carts", "orders", "order returns"], [0.1, 0.5, 1.0, None]),
    ],
)
def test_words_in_names_of_events_decide(
    tmp_path: Path, events: list[str], weights: list[float | None]
) -> None:
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "event": (events * N)[:N]})
    label = _roles(tmp_path, frame).label
    expected = {event: weight for event, weight in zip(events, weights, strict=True) if weight is not None}
    assert label.weights == expected
    assert set(label.left_out) == set(events) - set(expected)


def test_names_of_columns_in_other_languages_are_known(tmp_path: Path) -> None:
    for user, item in [
        ("Kundennr", "Artikelnummer"),
        ("User-ID", "ISBN"),
        ("id_usuario", "código_artículo"),
        ("клиент_id", "товар_id"),
    ]:
        frame = pd.DataFrame({"n": range(N), user: USERS, item: ITEMS})
        roles = _roles(tmp_path, frame)
        assert [one.source for one in (*roles.user, *roles.item)] == [user, item]


def test_without_a_label_every_row_is_a_click(tmp_path: Path) -> None:
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "play_duration": RNG.uniform(0, 1, N)})
    assert _roles(tmp_path, frame).label.column is None


def test_values_decide_between_columns_whose_names_mean_an_item_or_a_user(tmp_path: Path) -> None:
    """Quantities and kinds of items are few, and the id of an order is unique in the rows that have it."""
    frame = pd.DataFrame({"lineitem quantity": RNG.integers(1, 5, N), "lineitem name": ITEMS})
    frame["kontakt"] = [f"{user}@mail.example" for user in USERS]
    frame["order_type"] = RNG.choice(["web", "shop"], N)
    frame["id"] = [f"o{row}" if row % 2 else None for row in range(N)]
    roles = _roles(tmp_path, frame)
    assert [one.source for one in (*roles.user, *roles.item)] == ["kontakt", "lineitem name"]
    assert "id" not in [one.source for one in possible_keys([*_columns(tmp_path, frame).values()], N)]
    assert not _roles(tmp_path, frame.drop(columns="kontakt")).user
    only_weak = pd.DataFrame({"user": USERS, "device_category": RNG.choice(["mobile", "desktop"], N)})
    assert not _roles(tmp_path, only_weak).item


def test_an_item_with_many_nulls_is_found_by_its_name(tmp_path: Path) -> None:
    """Rows such as views of other pages have no item."""
    frame = pd.DataFrame({"user": USERS, "device_category": RNG.choice(["mobile", "desktop"], N)})
    frame["item_id"] = np.where(np.arange(N) % 3 == 0, ITEMS, None)
    assert [one.source for one in _roles(tmp_path, frame).item] == ["item_id"]


def test_a_key_with_nulls_is_the_last_choice(tmp_path: Path) -> None:
    artists = [None if row % 10 == 0 else f"a{row % 30}" for row in range(N)]
    roles = _roles(tmp_path, pd.DataFrame({"u": USERS, "a": artists, "b": ITEMS}), header=False)
    assert roles.item[0].source == "c3"


def test_names_of_columns_differ_and_are_plain() -> None:
    names = [*unique_names(["user:token", "a.b", "User", "_id", "é"], taken=["ID"])]
    assert names == ["user", "a_b", "User_2", "id_2", "column"]
