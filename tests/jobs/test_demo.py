"""The demo: its dates, its folder, its targets, its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import ConfigError, DataError
from conf.load import load_config
from jobs import demo
from jobs.chain.launchers import Stage, StageOutcome
from jobs.demo import main, verdict, verdict_table
from reporting.facts.run_facts import read_run_facts
from reporting.terminal import text_table
from storage.manifest import read_manifest
from storage.paths import LakePaths
from tests.reporting.report_lake import MEASURE, RUN_DATE, make_lake, publish_facts

_CONFIG = "conf/datasets/generated.yaml"


def test_first_run_has_a_full_window_behind_it_and_the_last_a_day_before_it() -> None:
    days = demo.calendar(load_config(_CONFIG), 3)
    assert days == demo.Calendar("2026-01-01", ("2026-01-08", "2026-01-09", "2026-01-10"), "2026-01-11")


@pytest.mark.parametrize(
    "overrides, num_runs, named",
    [
        ([], 4, "generate.days=12"),
        ([], 0, "--nights 0"),
        (["generate=null"], 3, "section `generate`"),
    ],
)
def test_impossible_numbers_of_runs_are_refused(overrides: list[str], num_runs: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        demo.calendar(load_config(_CONFIG, overrides), num_runs)


def test_folder_is_emptied_only_when_a_demo_made_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    demo.make_fresh(folder)
    (folder / "old").touch()
    demo.make_fresh(folder)
    assert not (folder / "old").exists()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").touch()
    with pytest.raises(ConfigError, match="was not made by the demo"):
        demo.make_fresh(precious)
    assert (precious / "thesis").exists()
    with pytest.raises(ConfigError, match="thesis cannot be emptied and written"):
        demo.make_fresh(precious / "thesis")


def test_bad_arguments_end_in_2_and_touch_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "out"), "--nights", "40"]) == 2
    assert "what to do:" in capsys.readouterr().err
    dates = ["--set", "generate.first_date=2062-01-01"]
    assert main(["--out", str(tmp_path / "out"), *dates]) == 2
    assert "is later than tomorrow" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_verdict_says_met_for_the_three_targets(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    figures = verdict(read_run_facts(config, RUN_DATE))
    assert [figure.met for figure in figures if figure.met is not None] == [True, True, True]
    assert "MISSED" not in verdict_table(figures)


def test_verdict_says_missed_by_name(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    lake = LakePaths(config.lake)
    facts = read_manifest(lake.evaluations.partition(RUN_DATE)).facts
    # best 0.9: the model reaches (0.7984 - 0.5) / 0.4 = 0.746 and logistic regression 0.526
    publish_facts(lake.evaluations.partition(RUN_DATE), {**facts, "best_auc": 0.9})
    publish_facts(lake.measures.partition(RUN_DATE), {**MEASURE, "lift": 1.2})
    missed = [figure.name for figure in verdict(read_run_facts(config, RUN_DATE)) if figure.met is False]
    assert missed == ["DLRM: (AUC - 0.5) / (best - 0.5)", "Lift"]


def test_unknown_best_auc_counts_as_missed(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    lake = LakePaths(config.lake)
    facts = read_manifest(lake.evaluations.partition(RUN_DATE)).facts
    publish_facts(lake.evaluations.partition(RUN_DATE), {**facts, "best_auc": None})
    assert [figure.met for figure in verdict(read_run_facts(config, RUN_DATE)) if figure.met is not None] == [
        False,
        False,
        True,
    ]


def test_verdict_compares_the_lists_with_the_best_possible_ones(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    figures = verdict(read_run_facts(config, RUN_DATE))
    assert [(figure.name, figure.value) for figure in figures[-3:]] == [
        ("Lists by true click probability: HR@10", "0.2750"),
        ("Best possible lists: HR@10", "0.2800"),
        ("Recommendations: HR / best HR", "0.750"),
    ]
    without = {name: value for name, value in MEASURE.items() if name != "truth"}
    for measure in (without, {**MEASURE, "truth": None}):  # an older release wrote no key `truth`
        publish_facts(LakePaths(config.lake).measures.partition(RUN_DATE), measure)
        assert [figure.name for figure in verdict(read_run_facts(config, RUN_DATE))][-1] == "Lift"


def test_run_without_measure_has_no_verdict(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    with pytest.raises(DataError, match="2026-01-09"):
        verdict(read_run_facts(config, "2026-01-09"))


def test_seconds_table_leaves_out_stages_that_a_run_skipped(tmp_path: Path) -> None:
    def outcome(job: str, seconds: float) -> StageOutcome:
        return StageOutcome(Stage(job, RUN_DATE, tmp_path / f"{job}.log"), 0, 0.0, seconds)

    outcomes_of_runs = {
        "night1": [outcome("a", 1.25), outcome("c", 2)],
        "night2": [outcome("a", 1), outcome("b", 3), outcome("c", 4)],
    }
    lines = [line.split() for line in demo.seconds_table(outcomes_of_runs).splitlines()]
    assert lines[2:] == [
        ["a", "1.2", "1.0"],
        ["b", "3.0"],
        ["c", "2.0", "4.0"],
        ["all", "stages", "3.2", "8.0"],
    ]


def test_text_table_aligns_numbers_right() -> None:
    assert text_table(["n", "value"], [["a", "1"], ["bb", "22.5"]], right=(1,)).splitlines() == [
        "  n   value",
        "  --  -----",
        "  a       1",
        "  bb   22.5",
    ]
