"""The source of a package proposes candidates, beside sources of the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pyspark.sql import DataFrame, SparkSession

from conf.errors import ConfigError
from conf.plugins import SOURCE
from conf.types import Candidates
from jobs.reference import config_schema, configuration_page
from scoring.candidates.build import make_candidates
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.source_settings import frames_needed_by, read_sources, source_digests
from scoring.candidates.source_tables import SourceTables
from tests.contract.test_config import SMALL
from tests.extensions.conftest import AddToCheckout
from tests.extensions.packages import SHOP, write_package

RUN_DATE = "2026-01-04"
# item -> the day of its first row; i3 and i4 share a day, "gone" is no item of the run.
FIRST = {"i0": 1, "i1": 4, "i2": 2, "i3": 3, "i4": 3, "gone": 4}
ITEMS = ["i0", "i1", "i2", "i3", "i4", "i5"]


@pytest.fixture
def tables(spark: SparkSession) -> SourceTables:
    """u0 clicked i1, u1 nothing; i0 has a click, and i2 has none."""
    rows = [("u0", item, float(item != "i2"), f"2026-01-0{day}") for item, day in FIRST.items()]
    rows += [("u1", "i0", 0.0, RUN_DATE), ("u9", "i0", 1.0, RUN_DATE)]
    users = spark.createDataFrame([("u0", [1]), ("u1", None)], "user_key string, excluded array<int>")
    items = spark.createDataFrame(list(enumerate(ITEMS)), "item_index int, item_key string")
    log = spark.createDataFrame(rows, "user_key string, item_key string, label float, features_dt string")
    return SourceTables(Exclusions(users, 1), items, log, RUN_DATE)


def config(*sources: dict[str, Any]) -> Candidates:
    return Candidates.model_validate({"sources": list(sources)})


def lists_of(frame: DataFrame) -> dict[str, tuple[list[int], list[int]]]:
    return {row.user_key: (row.candidates, row.sources) for row in frame.collect()}


def test_its_best_items_that_are_not_excluded_become_candidates(tables: SourceTables, shop: Path) -> None:
    newest = {"source": "newest", "n": 3}
    assert lists_of(make_candidates(config(newest), tables)) == {
        "u0": ([3, 4, 2], [0, 0, 0]),
        "u1": ([1, 3, 4], [0, 0, 0]),
    }
    scored = make_candidates(config(newest), tables, with_scores=True)
    scores = {row.user_key: row.source_scores for row in scored.collect()}
    first_day = 20_454.0  # days from 1970-01-01 to 2026-01-01
    assert scores == {
        "u0": [first_day + day for day in (2, 2, 1)],
        "u1": [first_day + day for day in (3, 2, 2)],
    }


def test_it_is_one_of_several_sources_and_reads_the_days_of_its_window(
    tables: SourceTables, shop: Path
) -> None:
    popular = {"source": "popular", "n": 1}
    recent = {"source": "newest", "n": 5, "window_days": 2, "clicked": True}
    # Clicks of the last two days: i1, i3, i4, and i0 of u9. The most popular item is i0.
    assert lists_of(make_candidates(config(popular, recent), tables)) == {
        "u0": ([0, 3, 4], [0, 1, 1]),
        "u1": ([0, 1, 3, 4], [0, 1, 1, 1]),
    }


def test_settings_are_checked_by_the_package(shop: Path) -> None:
    for settings, message in (
        ({"clicked": "perhaps"}, r"candidates\.sources\.0\.newest\.clicked='perhaps': "),
        ({"clicks": True}, r"unknown key candidates\.sources\.0\.newest\.clicks=True"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_sources(config({"source": "newest", **settings}))
    with pytest.raises(ValueError, match=r"sources\.0\.package\.n\n.*greater than 0"):
        config({"source": "newest", "n": 0})


def test_the_inputs_depend_on_the_code(shop: Path) -> None:
    assert source_digests(config({"source": "popular"})) == {}
    first = source_digests(config({"source": "newest"}, {"source": "popular"}))
    assert [*first] == ["candidate_sources.newest"]
    (shop / "newest.py").write_text("# changed\n")
    assert source_digests(config({"source": "newest"})) != first


@pytest.mark.parametrize(
    "returned, message",
    [
        ("inputs.users", r"returned a frame with the columns \['user_key'\]"),
        ("3", "returned a int, but its function propose must return a frame of Spark"),
    ],
)
def test_a_wrong_result_is_named(tables: SourceTables, site: Path, returned: str, message: str) -> None:
    text = (
        f"from conf.types import Strict as Settings\ndef propose(settings, inputs):\n    return {returned}\n"
    )
    write_package(site, "wrong", {"candidate_sources": {"wrong": "wrong"}}, {"wrong": text})
    with pytest.raises(ConfigError, match=f"the module wrong of the package wrong 1.0, {message}"):
        make_candidates(config({"source": "wrong"}), tables)


def test_pairs_without_a_finite_score_and_repeated_pairs_are_left_out(
    tables: SourceTables, site: Path, spark: SparkSession
) -> None:
    text = (
        "from conf.types import Strict as Settings\n"
        "ROWS = [('u0', 'i0', 'NaN'), ('u0', 'i2', None), ('u0', 'i3', 'Infinity'), ('u0', 'i4', '1'),\n"
        "        ('u0', 'i4', '3'), ('u0', 'i5', '2'), ('stranger', 'i0', '1')]\n"
        "def propose(settings, inputs):\n"
        "    spark = inputs.users.sparkSession\n"
        "    frame = spark.createDataFrame(ROWS, 'user_key string, item_key string, score string')\n"
        "    return frame.selectExpr('user_key', 'item_key', 'cast(score as double) as score')\n"
    )
    write_package(site, "odd", {"candidate_sources": {"odd": "odd"}}, {"odd": text})
    assert lists_of(make_candidates(config({"source": "odd"}), tables)) == {
        "u0": ([4, 5], [0, 0]),
        "u1": ([], []),
    }


def test_one_file_adds_a_source_to_the_checkout(tables: SourceTables, add_to_checkout: AddToCheckout) -> None:
    before = jsonschema.Draft7Validator(config_schema())
    add_to_checkout(SOURCE, "newest", (SHOP / "newest.py").read_text(encoding="utf-8"))
    newest = {"source": "newest", "n": 3}
    read = config(newest)
    assert lists_of(make_candidates(read, tables)) == {
        "u0": ([3, 4, 2], [0, 0, 0]),
        "u1": ([1, 3, 4], [0, 0, 0]),
    }
    assert source_digests(read) == {}
    dumped = read.model_dump(mode="json")["sources"]
    assert dumped == [{"source": "newest", "n": 3, "window_days": None, "clicked": False}]
    with pytest.raises(ValueError, match=r"sources\.0\.newest\.n\n.*greater than 0"):
        config({"source": "newest", "n": 0})
    after = jsonschema.Draft7Validator(config_schema())
    values = {**SMALL, "candidates": {"sources": [newest]}}
    assert (before.is_valid(values), after.is_valid(values)) == (False, True)
    assert not after.is_valid({**SMALL, "candidates": {"sources": [{**newest, "clicks": 1}]}})
    section = configuration_page().partition("## `candidates.sources newest`\n")[2].partition("\n## ")[0]
    assert "The source `newest`: the items whose first row in the log is the latest." in section
    assert "| `clicked` | true or false | `false` |" in section


def test_a_source_of_a_package_may_return_lists(
    tables: SourceTables, site: Path, spark: SparkSession
) -> None:
    text = (
        "from nightrank.extending import WindowedSource as Settings\n"
        "def candidates(settings, tables):\n"
        "    users = tables.exclusions.users\n"
        "    return users.selectExpr('user_key', 'array(5, 0) AS candidates',\n"
        "                            'array(cast(2 AS float), cast(1 AS float)) AS scores')\n"
    )
    write_package(site, "mine", {"candidate_sources": {"fixed": "fixed"}}, {"fixed": text})
    read = config({"source": "fixed", "n": 2})
    assert not frames_needed_by(read)
    assert frames_needed_by(config({"source": "popular"})) is False
    assert lists_of(make_candidates(read, tables)) == {"u0": ([5, 0], [0, 0]), "u1": ([5, 0], [0, 0])}
