"""generate_days on Spark: bytes do not depend on the task, and facts match the files."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from conf.load import load_config
from conf.types import Config
from etl.raw.files import require_raw
from etl.synthetic.click_probability import FEATURES, KEYS, MISSING, click_steps, tastes_of_day
from etl.synthetic.generate import generate_days, generate_settings, generated_dates, write_file
from etl.synthetic.lines import hex_tokens, value_name
from jobs.generate_clicks import run as generate_clicks
from spark.choose_workers import SparkWorkers
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl.log_rows import read_log
from tests.etl.synthetic import decoded

ROOT = Path(__file__).parents[3]
SMALL = ["generate.rows_per_day=4000", "generate.users=400", "generate.items=100", "generate.files_per_day=3"]


def _config(lake: Path, *overrides: str, name: str = "generated") -> Config:
    return load_config(str(ROOT / f"conf/datasets/{name}.yaml"), [f"lake={lake}", *overrides])


def _generate(spark: SparkSession, config: Config, dates: list[str]) -> None:
    generate_days(SparkWorkers(spark), LakePaths(config.lake), generate_settings(config), dates)


def _files(config: Config, dt: str) -> list[Path]:
    partition = LakePaths(config.lake).raw.partition(dt)
    return [Path(path) for path in data_files(partition, read_manifest(partition))]


def test_bytes_do_not_depend_on_the_run_the_task_or_the_worker(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path / "spark", *SMALL)
    _generate(spark, config, ["2026-01-01", "2026-01-02"])
    partition = LakePaths(str(tmp_path / "alone")).raw.partition("2026-01-02")
    alone = {file: write_file(generate_settings(config), partition, file) for file in (2, 0, 1)}
    for file, path in enumerate(_files(config, "2026-01-02")):
        assert path.read_bytes() == Path(partition.file(alone[file].name)).read_bytes()
    digest = read_manifest(LakePaths(config.lake).raw.partition("2026-01-02")).digest
    rerun = _config(tmp_path / "rerun", *SMALL)
    _generate(spark, rerun, ["2026-01-02"])
    assert read_manifest(LakePaths(rerun.lake).raw.partition("2026-01-02")).digest == digest


def test_the_job_needs_no_session_and_writes_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    """Processes of this machine run the tasks, more than one round of them."""
    digests = []
    for name in ("processes", "spark"):
        config = _config(tmp_path / name, *SMALL, "generate.days=2", "generate.files_per_day=9")
        context = RunContext("generate_clicks", config, "2026-01-01")
        if name == "processes":
            generate_clicks(context)
            assert context.started_spark is None
        else:
            _generate(spark, config, ["2026-01-01", "2026-01-02"])
        raw = LakePaths(config.lake).raw
        digests.append([read_manifest(raw.partition(f"2026-01-0{day}")).digest for day in (1, 2)])
    assert digests[0] == digests[1]
    assert digests[0][0] != digests[0][1]


def test_a_rerun_deletes_the_files_of_the_first_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path, *SMALL)
    _generate(spark, config, ["2026-01-01"])
    first = _files(config, "2026-01-01")
    other = first[0].with_name("mine.txt")
    other.write_text("kept")
    _generate(spark, config, ["2026-01-01"])
    second = _files(config, "2026-01-01")
    assert sorted(first[0].parent.glob("*.tsv*")) == second
    assert set(first).isdisjoint(second)
    assert other.exists()


@pytest.mark.parametrize("name", ["generated", "generated_named"])
def test_facts_match_what_a_reader_counts(spark: SparkSession, tmp_path: Path, name: str) -> None:
    config = _config(
        tmp_path, *SMALL, "generate.malformed_share=0.03", "generate.missing_share=0.05", name=name
    )
    _generate(spark, config, ["2026-01-01"])
    manifest = read_manifest(LakePaths(config.lake).raw.partition("2026-01-01"))
    facts = manifest.facts
    rows = read_log(spark, config, require_raw(config, config.log, "2026-01-01"))
    reasons = Counter(row["_reason"] for row in rows.select("_reason").collect())
    good = reasons.pop(None)
    assert dict(reasons) == facts["malformed"]
    assert facts["malformed_rows"] == reasons.total() == pytest.approx(120, abs=40)
    assert facts["rows"] == manifest.rows == good + reasons.total() == 4000
    read = decoded.criteo_rows if name == "generated" else decoded.named_rows
    whole = read(_files(config, "2026-01-01"))
    assert len(whole) == good
    assert facts["positives"] == whole["clicked"].sum()
    for column in FEATURES:
        missing = facts["missing"][column.criteo if name == "generated" else column.name]
        assert missing == (whole[column.name] == MISSING).sum(), column.name
        assert missing == pytest.approx(0 if column.kind == "key" else 0.05 * good, abs=60), column.name
    assert facts["users"] == whole["user_id"].nunique()
    assert facts["items"] == whole["item_id"].nunique()


def test_the_best_auc_of_default_days_is_exact_and_in_range(spark: SparkSession, tmp_path: Path) -> None:
    """The probability, computed again from the written columns, has the AUC of the manifest."""
    config = _config(tmp_path, "generate.rows_per_day=20000")
    dates = ["2026-01-07", "2026-01-08"]
    _generate(spark, config, dates)
    known: dict[str, set[int]] = {}
    for dt in dates:
        facts = read_manifest(LakePaths(config.lake).raw.partition(dt)).facts
        rows = decoded.criteo_rows(_files(config, dt))
        tastes = tastes_of_day(generate_settings(config).seed, date.fromisoformat(dt).toordinal())
        steps = click_steps(tastes, decoded.values_of(rows))
        assert facts["best_auc"] == pytest.approx(
            decoded.average_rank_auc(steps, rows["clicked"].to_numpy()), abs=1e-9
        )
        assert 0.78 <= facts["best_auc"] <= 0.85
        seen = {key: set(rows[key]) for key in KEYS}
        if known:
            assert 0 < facts["cold_users"] <= len(seen["user_id"] - known["user_id"])
            assert 0 < facts["cold_items"] <= len(seen["item_id"] - known["item_id"])
        known = seen


@pytest.mark.parametrize("name", ["generated", "generated_named"])
def test_the_context_of_the_configuration_has_values_of_the_log(name: str, tmp_path: Path) -> None:
    config = _config(tmp_path, name=name)
    context = [column for column in FEATURES if column.side == "context"]
    names = {(column.criteo if name == "generated" else column.name): column for column in context}
    assert set(config.scopes.context) == set(config.score.context) == set(names)
    for written, column in names.items():
        value = config.score.context[written]
        if column.kind == "integer":
            assert isinstance(value, int)
        elif name == "generated":
            assert value in hex_tokens(column.criteo, np.arange(column.levels)).to_pylist()
        else:
            assert value in [value_name(column, code) for code in range(column.levels)]


@pytest.mark.parametrize("name", ["generated", "generated_named"])
def test_every_feature_has_the_scope_of_its_side(name: str, tmp_path: Path) -> None:
    scopes = _config(tmp_path, name=name).scopes
    for side in ("user", "item", "context"):
        expected = {
            column.criteo if name == "generated" else column.name
            for column in FEATURES
            if column.side == side
        }
        assert set(getattr(scopes, side)) == expected


def test_the_job_publishes_its_days_and_reports_them(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = _config(tmp_path, *SMALL, "generate.days=2")
    with caplog.at_level(logging.INFO):
        result = generate_clicks(
            RunContext("generate_clicks", config, "2026-01-31", open_session=lambda _: spark)
        )
    assert "6 of 6 files are written" in caplog.messages
    assert result.rows_out == 8000
    assert result.output == LakePaths(config.lake).raw.path
    assert result.facts["best_auc"] == {
        dt: read_manifest(LakePaths(config.lake).raw.partition(dt)).facts["best_auc"]
        for dt in ("2026-01-31", "2026-02-01")
    }


def test_dates_follow_the_first_day() -> None:
    config = generate_settings(_config(Path("x"), "generate.days=3"))
    assert generated_dates(config, "2026-02-27") == ["2026-02-27", "2026-02-28", "2026-03-01"]


@pytest.mark.parametrize(
    "override, message",
    [
        ("generate=null", "no section `generate`"),
        ("generate.layout=named", "generate.layout=named writes csv"),
        ("generate.files_per_day=70000", "files_per_day=70000 must not be more than rows_per_day=60000"),
    ],
)
def test_settings_that_contradict_each_other(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate_settings(_config(Path("x"), override))
