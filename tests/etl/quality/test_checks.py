"""Limits: which figures become findings, at which level, and the text of the error."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from conf.errors import EXIT_DATA, DataError
from conf.load import load_config
from conf.types import Quality, SplitConfig
from etl.quality.checks import (
    ColumnReport,
    DayComparison,
    Finding,
    MissingRows,
    PieceRows,
    check_limits,
    check_missing_rows,
    require_no_stop,
    require_rows,
    unchecked,
)

DAY = "2026-01-08"
BY_DAY = SplitConfig(by="day")

COLUMN = ColumnReport(
    name="C3",
    kind="string",
    nulls=100,
    cells=900,
    train_nulls=100,
    train_cells=1900,
    distinct=40,
    train_distinct=50,
    new_cells=90,
    psi=0.2,
    psi_noise=0.05,
    moved=("<b>", 0.1, 0.3),
    top=(("<b>", 500, 300),),
    new_top=(("fresh\nvalue", 60),),
    low=None,
    high=None,
    mean=None,
)
PIECES = (
    PieceRows("2026-01-05", "train", 900, 90),
    PieceRows("2026-01-06", "train", 1100, 110),
    PieceRows("2026-01-07", "validation", 1000, 100),
    PieceRows(DAY, "test", 1000, 100),
)
COMPARED = DayComparison(DAY, False, PIECES, (COLUMN,))
# The figures of these rows: 100/1000 - 100/2000 nulls, 90/900 new values, rows and clicks as in training.
FIGURES = {"null_rate_change": 0.05, "new_value_rate": 0.1, "psi": 0.2}
OFF: dict[str, Any] = {name: None for name in Quality.model_fields if name.endswith(("_warn", "_stop"))}


def _findings(compared: DayComparison = COMPARED, split: SplitConfig = BY_DAY, **limits: Any) -> list[Any]:
    findings = check_limits(Quality(**{**OFF, **limits}), split, compared)
    return [(finding.level, finding.check, finding.column) for finding in findings]


def test_defaults_find_nothing_in_a_quiet_day() -> None:
    assert check_limits(Quality(), BY_DAY, COMPARED) == []


@pytest.mark.parametrize("check, value", FIGURES.items())
@pytest.mark.parametrize("level", ["warn", "stop"])
def test_a_figure_is_found_above_its_limit_and_not_at_it(check: str, value: float, level: str) -> None:
    assert _findings(**{f"{check}_{level}": value - 0.001}) == [(level, check, "C3")]
    assert _findings(**{f"{check}_{level}": value + 0.001}) == []
    assert _findings(**{f"{check}_{level}": value - 0.001}, exempt=["C3"]) == []


def test_a_figure_is_found_once_at_its_higher_level() -> None:
    assert _findings(psi_warn=0.1, psi_stop=0.15) == [("stop", "psi", "C3")]
    assert _findings(psi_warn=0.1, psi_stop=0.25) == [("warn", "psi", "C3")]
    assert _findings(psi_warn=0.1, null_rate_change_stop=0.0, new_value_rate_warn=0.0) == [
        ("stop", "null_rate_change", "C3"),
        ("warn", "new_value_rate", "C3"),
        ("warn", "psi", "C3"),
    ]


def test_nulls_that_vanish_are_a_change_too() -> None:
    fewer = replace(COMPARED, columns=(replace(COLUMN, nulls=0, cells=1000),))
    assert _findings(fewer, null_rate_change_warn=0.04) == [("warn", "null_rate_change", "C3")]


def test_a_psi_that_chance_may_give_is_not_findings() -> None:
    small = replace(COMPARED, columns=(replace(COLUMN, psi_noise=0.3),))
    assert _findings(small, psi_warn=0.1) == []
    unknown = replace(COMPARED, columns=(replace(COLUMN, psi=None, psi_noise=None, moved=None),))
    assert _findings(unknown, psi_warn=0.0) == []


def _with_day(rows: int, clicks: int) -> DayComparison:
    return replace(COMPARED, pieces=(*PIECES[:3], PieceRows(DAY, "test", rows, clicks)))


@pytest.mark.parametrize(
    "rows, clicks, limits, expected",
    [
        (390, 39, {"row_shortfall_warn": 0.6}, [("warn", "row_shortfall", None)]),
        (410, 41, {"row_shortfall_warn": 0.6}, []),
        (
            0,
            0,
            {"row_shortfall_stop": 0.99, "click_rate_change_stop": 0.0},
            [("stop", "row_shortfall", None)],
        ),
        (2100, 210, {"row_excess_stop": 1.0}, [("stop", "row_excess", None)]),
        (1900, 190, {"row_excess_stop": 1.0}, []),
        (1000, 160, {"click_rate_change_warn": 0.5}, [("warn", "click_rate_change", None)]),
        (1000, 40, {"click_rate_change_warn": 0.5}, [("warn", "click_rate_change", None)]),
        (1000, 140, {"click_rate_change_warn": 0.5}, []),
    ],
)
def test_rows_and_clicks_of_the_day(
    rows: int, clicks: int, limits: dict[str, float], expected: list[Any]
) -> None:
    assert _findings(_with_day(rows, clicks), **limits) == expected


def test_splits_of_one_partition_have_no_usual_size_and_leave_last_out_no_usual_rate() -> None:
    odd = _with_day(10, 10)
    limits = {"row_shortfall_stop": 0.1, "click_rate_change_stop": 0.1}
    assert _findings(odd, SplitConfig(by="fraction"), **limits) == [("stop", "click_rate_change", None)]
    assert _findings(odd, SplitConfig(by="leave_last_out"), **limits) == []


def test_the_error_names_everything_and_its_remedy_is_accepted() -> None:
    drifted = replace(COMPARED, columns=(COLUMN, replace(COLUMN, name="I1", psi=0.8123)))
    quality = Quality(psi_stop=0.15, psi_warn=0.1, new_value_rate_stop=0.05, new_value_rate_warn=0.05)
    findings = check_limits(quality, BY_DAY, drifted)
    with pytest.raises(DataError) as caught:
        require_no_stop(drifted, findings, "lake/quality/x/dt=2026-01-08")
    assert caught.value.exit_code == EXIT_DATA == 3
    for text in (
        DAY,
        "2026-01-05 to 2026-01-06",
        "I1 drifted; the share of '<b>' changed most, to 30.00% of rows from 10.00% on the train days",
        "psi=0.8123 is above quality.psi_stop=0.15",
        "10.00% of the values of C3 do not occur on the train days, most often 'fresh\\nvalue'",
        "new_value_rate=0.1 is above quality.new_value_rate_stop=0.05",
    ):
        assert text in caught.value.problem
    assert "\n" not in caught.value.problem
    assert "lake/quality/x/dt=2026-01-08" in caught.value.remedy
    accepted = dict(re.findall(r"--set quality\.(\w+)=([\d.e-]+)", caught.value.remedy))
    assert accepted == {"psi_stop": "0.82", "new_value_rate_stop": "0.1"}
    raised = quality.model_copy(update={name: float(value) for name, value in accepted.items()})
    require_no_stop(drifted, check_limits(raised, BY_DAY, drifted), "")


def test_warnings_alone_end_nothing() -> None:
    findings = check_limits(Quality(psi_warn=0.1), BY_DAY, COMPARED)
    assert [finding.level for finding in findings] == ["warn"]
    require_no_stop(COMPARED, findings, "")


TWO_LEVELS = [name[:-5] for name in Quality.model_fields if f"{name[:-5]}_stop" in Quality.model_fields]


@pytest.mark.parametrize("check", TWO_LEVELS)
def test_every_check_has_two_levels_in_order(check: str) -> None:
    assert getattr(Quality(), f"{check}_stop") is None
    with pytest.raises(ValidationError, match=rf"{check}_warn=0\.2 must not be above {check}_stop=0\.1"):
        Quality(**{f"{check}_warn": 0.2, f"{check}_stop": 0.1})
    Quality(**{f"{check}_warn": 0.2, f"{check}_stop": 0.2})
    Quality(**{f"{check}_warn": None, f"{check}_stop": 0.1})
    with pytest.raises(ValidationError):
        Quality(**{f"{check}_warn": -0.1})


def test_columns_of_items_are_not_compared_if_only_test_rows_have_drawn_items() -> None:
    user, item = replace(COLUMN, name="user", psi=2.0), replace(COLUMN, name="item", psi=2.0)
    drifted = replace(COMPARED, columns=(user, item))
    findings = check_limits(Quality(), BY_DAY, drifted, draws=True)
    assert [finding.column for finding in findings] == ["item", "user"]
    config = load_config("conf/datasets/movielens.yaml")
    assert config.drawn_columns == {"item_id", "release_year", "genres"}
    findings = check_limits(Quality(), BY_DAY, drifted, draws=True, drawn_columns={"item", "brand"})
    assert [finding.column for finding in findings] == ["user"]
    *_, why = unchecked(BY_DAY, drifted, draws=True, drawn_columns={"item", "brand"})
    assert why == "item, because only the test rows have drawn items (negatives.train: false)"
    assert config.negatives is not None
    everywhere = config.negatives.model_copy(update={"train": True})
    assert config.model_copy(update={"negatives": everywhere}).drawn_columns == set()


def test_the_limits_of_misdated_rows_are_in_order() -> None:
    Quality(misdated_share_warn=0.2, max_misdated_share=0.2)
    Quality(misdated_share_warn=None, max_misdated_share=0.1)
    with pytest.raises(
        ValidationError, match=r"misdated_share_warn=0\.2 must not be above max_misdated_share=0\.1"
    ):
        Quality(misdated_share_warn=0.2, max_misdated_share=0.1)


def test_facts_are_read_as_they_were_written() -> None:
    assert DayComparison.from_facts(COMPARED.to_facts()) == COMPARED
    assert COMPARED.to_facts()["columns"][0]["new_value_rate"] == 0.1


def test_published_findings_keep_their_keys() -> None:
    finding = Finding("warn", "psi", "C3", 0.2, 0.1, "C3 drifted")
    facts = finding.to_facts()
    assert list(facts) == ["level", "check", "column", "value", "limit", "said"]
    assert Finding.from_facts(facts) == finding


def test_click_rates_need_rows_and_a_click_in_training() -> None:
    assert COMPARED.click_rates is not None
    assert (COMPARED.click_rates.today, COMPARED.click_rates.train) == (0.1, 0.1)
    assert COMPARED.click_rates.change == 0.0
    assert _with_day(0, 0).click_rates is None
    no_clicks = tuple(replace(piece, clicks=0) for piece in PIECES[:3])
    assert replace(COMPARED, pieces=(*no_clicks, PIECES[3])).click_rates is None


MISSING = (MissingRows("users", 20, 10), MissingRows("items", 1000, 151), MissingRows("items", 0, 0))


@pytest.mark.parametrize(
    "limits, expected",
    [
        ({}, []),
        ({"users_without_row_warn": 0.5, "items_without_row_warn": 0.151}, []),
        ({"users_without_row_warn": 0.49}, [("warn", "users_without_row", 0.5)]),
        (
            {"items_without_row_warn": 0.1, "items_without_row_stop": 0.15},
            [("stop", "items_without_row", 0.151)],
        ),
    ],
)
def test_shares_without_a_row_are_found_above_their_limit(
    limits: dict[str, float], expected: list[tuple[str, str, float]]
) -> None:
    found = check_missing_rows(Quality(**{**OFF, **limits}), MISSING)
    assert [(finding.level, finding.check, finding.value) for finding in found] == expected


def test_too_many_users_and_items_without_a_row_stop_the_job() -> None:
    paths = {"users": "/raw/users.csv", "items": "/raw/items.csv"}
    defaults = Quality()
    require_rows(defaults, MISSING, paths)
    assert {finding.level for finding in check_missing_rows(defaults, MISSING)} == {"warn"}
    with pytest.raises(DataError) as stopped:
        require_rows(Quality(items_without_row_stop=0.15, users_without_row_stop=0.9), MISSING, paths)
    assert str(stopped.value).startswith(
        "/raw/items.csv: 151 of 1000 items of the log have no row in the table `items`: "
        "items_without_row=0.151 is above quality.items_without_row_stop=0.15"
    )
    accepted = re.search(r"--set quality.items_without_row_stop=([0-9.]+)$", stopped.value.remedy)
    assert accepted
    require_rows(Quality(items_without_row_stop=float(accepted[1])), MISSING, paths)


def test_a_log_of_choices_has_no_click_rate_to_compare() -> None:
    moved, limits = _with_day(1000, 900), Quality(click_rate_change_warn=0.1)
    assert [finding.check for finding in check_limits(limits, BY_DAY, moved)] == ["click_rate_change"]
    assert unchecked(BY_DAY, moved, draws=False) == []
    assert check_limits(limits, BY_DAY, moved, draws=True) == []
    (why,) = unchecked(BY_DAY, moved, draws=True)
    assert why.startswith("the click rate, because the section negatives")
    only = replace(COMPARED, pieces=tuple(replace(piece, clicks=piece.rows) for piece in PIECES))
    assert only.click_rates is None
    assert unchecked(BY_DAY, only, draws=False) == ["the click rate, because every row is a click"]
    assert unchecked(SplitConfig(by="leave_last_out"), COMPARED, draws=False) == [
        "the number of rows, because the log is not divided into days",
        "the click rate, because split.by=leave_last_out chooses the test rows by their clicks",
    ]
    assert not replace(COMPARED, pieces=tuple(replace(p, rows=0, clicks=0) for p in PIECES)).only_clicks
