"""Business rules against the plain Python of oracle.py over random rankings, and each rule alone."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from deltalake import write_deltalake
from pyarrow import orc

from conf.errors import ConfigError, DataError
from conf.list_types import Attribute
from conf.types import ListRules
from scoring.ranking import recommender as module
from scoring.ranking.recommender import ListRanker
from scoring.rules.attributes import align, digest_of_table, read_attribute
from scoring.rules.plugins.exploration import draw_keys, positions_to_explore, text_hashes
from scoring.rules.request import AttributeTable, attribute_table, rules_request
from tests.scoring.ranking.test_recommender import batch_of
from tests.scoring.reference_scores import ReferenceScores, make_recommender
from tests.scoring.rules.oracle import PlainRules, draw_of, list_of

RUN_DATE = "2026-01-05"
K = 6


def write_shelves(folder: Path, reference: ReferenceScores) -> dict[str, str]:
    """An attribute of most items: `red` of many, `blue` and `green` of some, none of every seventh."""
    colours = ["red", "red", "blue", "red", "green"]
    shelves = {
        item: colours[index % 5] for index, item in enumerate(reference.items.item_key) if index % 7 != 3
    }
    rows = pa.table({"sku": list(shelves), "colour": list(shelves.values())})
    pq.write_table(rows, folder / f"shelves-{RUN_DATE}.parquet")
    return shelves


def rules_of(folder: Path, **rules: Any) -> ListRules:
    """Rules with the attribute table of a folder."""
    table = {
        "path": f"{folder}/shelves-{{date}}.parquet",
        "format": "parquet",
        "key": "sku",
        "column": "colour",
    }
    used = {"boost", "max_per_category"} & set(rules)
    return ListRules.model_validate({"attributes": {"shelf": table} if used else {}, **rules})


def recommender_with(reference: ReferenceScores, rules: ListRules, k: int = K) -> ListRanker:
    """A recommender with rules."""
    request = rules_request(rules, k, RUN_DATE, {})
    return make_recommender(replace(reference.request, k=k, rules=request))


def lists_of(recommender: ListRanker, batch: pa.RecordBatch) -> pd.DataFrame:
    """The lists of a batch."""
    return pd.concat([lists.to_pandas() for lists in recommender.recommend(batch)], ignore_index=True)


def boost(by: str = "factor", **values: float) -> dict[str, Any]:
    """A boost by colour."""
    return {"boost": {"attribute": "shelf", "by": by, "values": values}}


def cap(most: int) -> dict[str, Any]:
    """A maximum per colour."""
    return {"max_per_category": {"attribute": "shelf", "max": most}}


def explore(share: float, seed: int = 3) -> dict[str, Any]:
    """An exploration."""
    return {"exploration": {"share": share, "seed": seed}}


CASES: dict[str, tuple[dict[str, Any], PlainRules]] = {
    "cap of 1": (cap(1), PlainRules(most=1)),
    "cap of 2": (cap(2), PlainRules(most=2)),
    "cap above any": (cap(100), PlainRules(most=100)),
    "factor": (boost(blue=3.0, red=0.25), PlainRules(boosts={"blue": 3.0, "red": 0.25})),
    "log-odds": (
        boost("log_odds", blue=2.0, green=-1.5),
        PlainRules("log_odds", boosts={"blue": 2.0, "green": -1.5}),
    ),
    "log-odds that decide alone": (
        boost("log_odds", green=20.0),
        PlainRules("log_odds", boosts={"green": 20.0}),
    ),
    "explore a third": (explore(0.3), PlainRules(explore=2, salt=f"3|{RUN_DATE}")),
    "explore all": (explore(1.0), PlainRules(explore=K, salt=f"3|{RUN_DATE}")),
    "all three": (
        {**boost(red=4.0), **cap(2), **explore(0.5)},
        PlainRules(boosts={"red": 4.0}, most=2, explore=3, salt=f"3|{RUN_DATE}"),
    ),
}


@pytest.mark.parametrize("most_users", [1, 1_024], ids=["a user at a time", "all users at once"])
@pytest.mark.parametrize("name", CASES)
def test_lists_equal_the_plain_walk(
    reference: ReferenceScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most_users: int
) -> None:
    """Over the whole ranking, for users with 0, 1, few and all items as candidates."""
    monkeypatch.setattr(module, "_LEAST_USERS", 1)
    monkeypatch.setattr(module, "_MOST_USERS", most_users)
    settings, plain = CASES[name]
    shelves = write_shelves(tmp_path, reference)
    plain = replace(plain, values=shelves, categories=shelves)
    draw = np.random.default_rng(17)
    sizes = [0, 1, 2, 5, 6, 7, 14, 23] * 5
    chosen = [
        draw.permutation(23)[:size].tolist() for size, _ in zip(sizes, reference.users.user_key, strict=False)
    ]
    recommender = recommender_with(reference, rules_of(tmp_path, **settings))
    actual = lists_of(recommender, batch_of(reference.users, candidates=chosen))
    probabilities = reference.probabilities.astype(np.float32)
    ours = dict(iter(actual.groupby("user_id", sort=False)))
    reasons: Counter[str] = Counter()
    for row, (user, user_rows) in enumerate(zip(reference.users.user_key, chosen, strict=True)):
        scored = [(reference.items.item_key[item], float(probabilities[row, item])) for item in user_rows]
        expected = list_of(plain, user, scored, K)
        got = ours.get(user, actual.iloc[:0])
        assert list(zip(got.item_id, got.reason, strict=True)) == expected, user
        assert got.position.tolist() == list(range(1, len(expected) + 1))
        by_item = dict(scored)
        np.testing.assert_allclose(got.score, [by_item[item] for item, _ in expected], atol=1e-6)
        reasons.update(reason for _, reason in expected)
    boosted = {f"boost:{value}" for value in plain.boosts or {}}
    drawn = {"explore"} if plain.explore else set()
    ranked = {"ranked"} if plain.explore < K else set()
    assert boosted | drawn | ranked >= set(reasons) >= drawn | ranked  # every kind of reason occurred


def test_the_walk_goes_past_any_number_of_full_categories(reference: ReferenceScores, tmp_path: Path) -> None:
    """The best item that is not red may be the last of all, below any fixed number of best items."""
    keys = reference.items.item_key.tolist()
    order = np.argsort(-reference.probabilities[0].astype(np.float32), kind="stable")
    shelves = {keys[item]: "red" for item in order[:-1]} | {keys[order[-1]]: "blue"}
    pq.write_table(
        pa.table({"sku": list(shelves), "colour": list(shelves.values())}),
        tmp_path / f"shelves-{RUN_DATE}.parquet",
    )
    actual = lists_of(
        recommender_with(reference, rules_of(tmp_path, **cap(1))), batch_of(reference.users.iloc[:1])
    )
    assert actual.item_id.tolist() == [keys[order[0]], keys[order[-1]]]


def test_boosts_that_change_nothing_leave_list_and_scores(reference: ReferenceScores, tmp_path: Path) -> None:
    write_shelves(tmp_path, reference)
    plain = make_recommender(replace(reference.request, k=K))
    expected = lists_of(plain, batch_of(reference.users))
    for rules in (boost(red=1.0), boost("log_odds", red=0.0), cap(23)):
        actual = lists_of(recommender_with(reference, rules_of(tmp_path, **rules)), batch_of(reference.users))
        pd.testing.assert_frame_equal(actual, expected)
    assert set(expected.reason) == {"ranked"}


def test_a_draw_is_the_same_again_and_another_on_another_day_or_seed(
    reference: ReferenceScores, tmp_path: Path
) -> None:
    rules = rules_of(tmp_path, **explore(0.5))

    def drawn(run_date: str, rules: ListRules) -> list[tuple[str, str]]:
        request = rules_request(rules, K, run_date, {})
        recommender = make_recommender(replace(reference.request, k=K, rules=request))
        rows = lists_of(recommender, batch_of(reference.users))
        return list(zip(rows.user_id, rows.item_id, strict=True))

    first = drawn(RUN_DATE, rules)
    assert drawn(RUN_DATE, rules) == first
    assert drawn("2026-01-06", rules) != first
    assert drawn(RUN_DATE, rules_of(tmp_path, **explore(0.5, seed=4))) != first


def test_draws_fall_evenly_on_items() -> None:
    """First draws of 20,000 users over 10 items; χ² with 9 degrees of freedom exceeds 27.9 once in 1,000."""
    users = [f"u{number}" for number in range(20_000)]
    items = [f"item {number}" for number in range(10)]
    keys = draw_keys(text_hashes(users, "0|d"), text_hashes(items)[None, :].expand(len(users), -1))
    assert keys[7].tolist() == [draw_of("u7", item, "0|d") for item in items]
    counts = torch.bincount(keys.argmin(dim=1), minlength=10).double()
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 27.9


@pytest.mark.parametrize(
    "share, k, places", [(0.1, 10, 1), (0.1, 30, 3), (0.11, 10, 2), (1.0, 7, 7), (0.001, 5, 1)]
)
def test_a_share_is_rounded_up_as_it_is_written(share: float, k: int, places: int) -> None:
    assert positions_to_explore(share, k) == places


def test_items_repeated_among_candidates_are_an_error_under_rules_too(
    reference: ReferenceScores, tmp_path: Path
) -> None:
    recommender = recommender_with(reference, rules_of(tmp_path, **explore(0.5)))
    batch = batch_of(reference.users.iloc[:2], candidates=[[1, 2], [3, 4, 3]])
    with pytest.raises(
        DataError, match=f"candidates of user {reference.users.user_key[1]} contain an item twice"
    ):
        lists_of(recommender, batch)


def table_of(path: Path | str, kind: str = "csv", **settings: Any) -> AttributeTable:
    """The table of an attribute `colour` of items with the key `sku`."""
    values = {"path": str(path), "format": kind, "key": "sku", "column": "colour", **settings}
    return attribute_table(Attribute.model_validate(values), {})


# Items with a colour, of which one is null.
COLOURS = {"007": "red", "8": None, "9": "blue"}
VALUES = {"sku": list(COLOURS), "colour": list(COLOURS.values()), "other": [1, 2, 3]}


def _lines(separator: str, header: bool, null: str) -> str:
    rows = zip(*VALUES.values(), strict=True)
    lines = [separator.join(null if value is None else str(value) for value in row) for row in rows]
    return "\n".join([*([separator.join(VALUES)] if header else []), *lines]) + "\n"


def _write_avro(path: Path) -> None:
    kinds = {"sku": "string", "colour": ["null", "string"], "other": "int"}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    rows = [dict(zip(VALUES, row, strict=True)) for row in zip(*VALUES.values(), strict=True)]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "item", "fields": fields}, rows)


# Format -> what writes VALUES to a path, and the settings that read the file.
WRITERS: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "csv": (lambda path: path.write_text(_lines(",", True, "")), {}),
    "tsv": (
        lambda path: path.write_text(_lines("\t", False, "none")),
        {
            "columns": [{"name": name, "type": "string"} for name in VALUES],
            "null_values": ["none"],
        },
    ),
    "jsonl": (lambda path: pd.DataFrame(VALUES).to_json(path, orient="records", lines=True), {}),
    "parquet": (lambda path: pq.write_table(pa.table(VALUES), path), {}),
    "orc": (lambda path: orc.write_table(pa.table(VALUES), path), {}),
    "avro": (_write_avro, {}),
    "delta": (lambda path: write_deltalake(path, pa.table(VALUES)), {}),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_attributes_of_all_formats_are_the_same(tmp_path: Path, kind: str) -> None:
    write, settings = WRITERS[kind]
    write(tmp_path / "rows")
    table = table_of(tmp_path / ("rows" if kind == "delta" else "row*"), kind, **settings)
    read = read_attribute(table)
    expected = pa.table({"key": ["007", "9"], "value": ["red", "blue"]})
    assert digest_of_table(read) == digest_of_table(expected)
    actual = align(table, read, pa.array(["9", "x", "007", "8"]))
    assert [actual.values[code] if code >= 0 else None for code in actual.codes] == [
        "blue",
        None,
        "red",
        None,
    ]


def test_a_folder_may_have_files_with_different_headers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sku,colour\n007,red\n")
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("other,colour,sku\n2,,8\n3,blue,9\n")
    (tmp_path / "_SUCCESS").write_text("")
    assert read_attribute(table_of(tmp_path)).to_pydict() == {"key": ["007", "9"], "value": ["red", "blue"]}


@pytest.mark.parametrize(
    "kind, values, texts",
    [
        ("int", ["7", "7.0", "", "8"], ["7", "7", "8"]),
        ("float", ["1.5", "2", "", "1e3"], ["1.5", "2", "1000"]),
        ("decimal", ["1.50", "2", "", "-0.25"], ["1.5", "2", "-0.25"]),
        ("bool", ["yes", "0", "", "TRUE"], ["true", "false", "true"]),
        ("date", ["2026-01-31", "1969-12-31", "", "9999-12-31"], ["2026-01-31", "1969-12-31", "9999-12-31"]),
    ],
)
def test_values_of_a_type_have_texts(tmp_path: Path, kind: str, values: list[str], texts: list[str]) -> None:
    lines = ["sku,colour", *(f"{row},{value}" for row, value in enumerate(values))]
    (tmp_path / "rows").write_text("\n".join(lines) + "\n")
    table = table_of(tmp_path / "rows", columns=[{"name": "colour", "type": kind}])
    assert read_attribute(table).column("value").to_pylist() == texts


def test_names_that_no_column_may_have_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("_id,a/b\n1,red\n")
    table = table_of(tmp_path / "rows", key="_id", column="a/b")
    assert read_attribute(table).to_pydict() == {"key": ["1"], "value": ["red"]}


def test_keys_of_attributes_are_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    table = table_of(path, "parquet", columns=[{"name": "colour", "type": "float"}])
    nan = float("nan")
    rows = {"sku": [7.0, 1_000_001.0, nan, 9.0], "colour": [1.5, 2.0, 3.0, nan]}
    pq.write_table(pa.table(rows), path)
    assert read_attribute(table).to_pydict() == {"key": ["7", "1000001"], "value": ["1.5", "2"]}
    pq.write_table(pa.table({**rows, "sku": [7.5, 1.0, 2.0, 3.0]}), path)
    with pytest.raises(DataError, match=r"rows, row 1: the value 7\.5 of the column 'sku' has no text"):
        read_attribute(table)


@pytest.mark.parametrize(
    "text, table, kind, message",
    [
        (
            "sku,colour\n1,red\n1,blue\n",
            {},
            DataError,
            "the values of sku are not unique: 1 item has .* such as '1'",
        ),
        ("id,colour\n1,red\n", {}, DataError, r"no columns \['sku'\]; its header is \['id', 'colour'\]"),
        ("sku,colour\nz,red\n", {}, DataError, "none of the 1 candidate items, such as 'i001'"),
        ("sku,colour\n1,red\n", {"path": "gone.csv"}, ConfigError, "there is no file at .*gone.csv"),
        ("sku,colour\n1,red\n", {"kind": "parquet"}, DataError, "not a Parquet file"),
        (
            "sku,colour\n1,red\n2\n",
            {},
            DataError,
            "rows.csv: 1 row does not parse; the first is line 3 has 1",
        ),
        (
            "sku,colour\n1,red\n2,4\n",
            {"columns": [{"name": "colour", "type": "int"}]},
            DataError,
            "line 2: colour has the value 'red', which is not an integer of 64 bits\n.*score.rules.attributes",
        ),
    ],
)
def test_a_wrong_table_is_refused(
    tmp_path: Path, text: str, table: dict[str, Any], kind: type[Exception], message: str
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    asked = table_of(**{"path": tmp_path / table.get("path", "rows.csv"), **_without(table, "path")})
    with pytest.raises(kind, match=message):
        align(asked, read_attribute(asked), pa.array(["i001"]))


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kind": "tsv"}, r"`columns` lacks \['sku', 'colour'\]: the columns of tsv files have no names"),
        ({"columns": [{"name": "other", "type": "int"}]}, r"lists \['other'\], which are not read"),
        (
            {"columns": [{"name": "sku", "type": "float"}]},
            r"'sku', which has the type float: give it .* in score",
        ),
        ({"columns": [{"name": "colour", "type": "list<int>"}]}, "'colour', which has the type list<int>"),
        ({"kind": "parquet", "separator": ";"}, "separator divides the fields of text files"),
    ],
)
def test_settings_of_a_table_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table_of("p", **settings)


def test_tables_of_earlier_releases_keep_their_digest() -> None:
    values = {"path": "p", "format": "csv", "key": "sku", "column": "colour"}
    assert Attribute.model_validate(values).model_dump(mode="json") == values


@pytest.mark.parametrize(
    "rules, message",
    [
        ({}, "the section contains no rule"),
        (boost(red=-1.0), "factors must be above 0"),
        (boost("log_odds", red=51.0), "from -50 to 50"),
        (
            {**explore(0.1), "attributes": {"x": {"path": "p", "format": "csv", "key": "a", "column": "b"}}},
            "no rule uses the attributes",
        ),
        ({"max_per_category": {"attribute": "brand", "max": 2}}, r"attributes \['brand'\] are not defined"),
        (explore(0.0), "greater than 0"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rules: dict[str, Any], message: str) -> None:
    shelf = {"path": "p", "format": "csv", "key": "sku", "column": "colour"}
    uses = any("shelf" in str(rule) for rule in rules.values())
    values = {"attributes": {"shelf": shelf}, **rules} if uses else rules
    with pytest.raises(ValueError, match=message):
        ListRules.model_validate(values)
