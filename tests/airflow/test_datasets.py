"""Several datasets in one Airflow: a DAG file for each, own options, and errors that stop no other dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.airflow_setup import LOCAL_MASTER, ROOT, AirflowSetup
from tests.airflow.test_dags import NAMES, NOT_RETRIED, RETRIED

pytestmark = pytest.mark.timeout(600)

FILE = """from airflow_dags.create_dags import create_dags
from airflow_dags.dataset import Dataset

create_dags(Dataset({arguments}))
"""
BOOKS = (
    '"books", daily_cron="30 0 * * *", weekly_cron="15 6 * * 1", timezone="Asia/Tokyo", retries=5, '
    'pool="books_pool", task_hours={"train_model": 30, "default": 1.5}, daily_late_hours=2, '
    "weekly_late_hours=40, log_wait_hours=3, prune_keep_days=90"
)
# Name of a dataset with a wrong option → arguments, what the import error must contain.
WRONG = {
    "hourly": ('"hourly", daily_cron="0 * * * *"', ("daily_cron='0 * * * *'", "at most one run a day")),
    "no_cron": ('"no_cron", weekly_cron="0 12 * * 9"', ("weekly_cron='0 12 * * 9'", "not a cron expression")),
    "late": ('"late", daily_cron="0 25 * * *"', ("daily_cron='0 25 * * *'", "not a cron expression")),
    "nowhere": ('"nowhere", timezone="Mars/North"', ("timezone='Mars/North'", "not a timezone")),
    "retried": ('"retried", retries="two"', ("retries='two'", "an integer from 0 to 20")),
    "endless": ('"endless", log_wait_hours=0', ("log_wait_hours=0", "hours above 0")),
    "strange": ('"strange", task_hours={"trian_model": 3}', ("unknown job 'trian_model'", "train_model")),
    "slow": ('"slow", task_hours={"report": True}', ("task_hours={'report': True}", "hours above 0")),
    "pruned": ('"pruned", prune_keep_days=0', ("prune_keep_days=0", "the days that a run reads")),
    "pooled": ('"pooled", pool=""', ("pool=''", "the name of an Airflow pool")),
}
NOW = "2026-03-09T22:00:00+00:00"  # a Monday; in Tokyo it is Tuesday


@pytest.fixture(scope="module")
def several(
    airflow_setup: AirflowSetup,
    run_airflow_script: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """The DAGs of the datasets `default` and `books` beside wrong datasets, and the error of a stage of each."""
    dags = tmp_path_factory.mktemp("dags")
    (dags / "airflow_dags").symlink_to(ROOT / "airflow_dags")
    (dags / "nightrank_books.py").write_text(FILE.format(arguments=BOOKS))
    for name, (arguments, _) in WRONG.items():
        (dags / f"nightrank_{name}.py").write_text(FILE.format(arguments=arguments))
    (dags / "nightrank_Big.py").write_text(FILE.format(arguments='"Big__Name"'))
    books = {**airflow_setup.home.variable, "config": "books.yaml", "spark_connection": "spark_of_books"}
    connection = json.dumps({"conn_type": "spark", "host": LOCAL_MASTER})
    described: dict[str, Any] = run_airflow_script(
        "describe_datasets",
        NOW,
        AIRFLOW__CORE__DAGS_FOLDER=str(dags),
        PYTHONPATH=str(dags),
        AIRFLOW_VAR_NIGHTRANK_BOOKS=json.dumps(books),
        AIRFLOW_CONN_SPARK_OF_BOOKS=connection,
        PLANNED_ENDS=str(airflow_setup.planned_ends),
    )
    return described


def test_each_dataset_has_its_dags_and_the_default_has_ids_without_a_name(several: dict[str, Any]) -> None:
    assert set(several["dags"]) == NAMES | {f"{name}__books" for name in NAMES}
    for name, dag in several["dags"].items():
        assert dag["file"] == ("nightrank_books.py" if name.endswith("__books") else "default_dataset.py")


def test_options_reach_the_dags_of_their_dataset_only(several: dict[str, Any]) -> None:
    daily, books = (several["dags"][f"daily_recommendations{end}"] for end in ("", "__books"))
    assert (daily["retries"], books["retries"]) == ([2], [5])
    assert (daily["pools"], books["pools"]) == (["nightrank_spark"], ["books_pool"])
    assert (daily["late"], books["late"]) == (6, 2)
    assert (daily["log_wait_hours"], books["log_wait_hours"]) == (12, 3)
    assert set(daily["hours"].values()) == {3}
    assert set(books["hours"].values()) == {1.5}
    assert daily["assets"] == ["nightrank_champion", "nightrank_recommendations"]
    assert books["assets"] == ["nightrank_champion__books", "nightrank_recommendations__books"]
    weekly, books = (several["dags"][f"weekly_training{end}"] for end in ("", "__books"))
    assert (weekly["late"], books["late"]) == (24, 40)
    jobs = ("train_model", "train_retriever", "refit_model", "evaluate_model", "build_features_again")
    assert [weekly["hours"][job] for job in jobs] == [12, 6, 12, 3, 3]
    assert [books["hours"][job] for job in jobs] == [30, 6, 12, 1.5, 1.5]


def test_the_weekly_dag_deletes_old_dates_if_the_dataset_says_so(several: dict[str, Any]) -> None:
    weekly, books = (several["dags"][f"weekly_training{end}"] for end in ("", "__books"))
    assert (weekly["options"], weekly["last"]) == ({}, ["notify"])
    assert books["options"] == {"prune": ["--keep-days", "90", "--delete"]}
    assert (books["last"], books["hours"]["prune"]) == (["prune"], 1.5)


def test_dags_of_a_dataset_wait_for_and_start_dags_of_the_same_dataset(several: dict[str, Any]) -> None:
    for end in ("", "__books"):
        dags = {name: several["dags"][f"{name}{end}"] for name in NAMES}
        assert dags["daily_recommendations"]["waits_for"] == f"weekly_training{end}"
        assert dags["weekly_training"]["waits_for"] == f"daily_recommendations{end}"
        assert dags["backfill_recommendations"]["starts"] == f"daily_recommendations{end}"


def test_a_run_waits_as_long_as_a_run_of_the_other_dag_may_take(several: dict[str, Any]) -> None:
    """With task_hours={"train_model": 30}, the daily runs of books wait longer than a day for a training."""
    for end in ("", "__books"):
        daily, weekly = (
            several["dags"][f"{name}{end}"] for name in ("daily_recommendations", "weekly_training")
        )
        prune = 0 if end else 3  # only the dataset books has this task
        for waiting, other, more in ((daily, weekly, prune), (weekly, daily, 0)):
            attempts = 1 + other["retries"][0]
            hours = other["log_wait_hours"] + attempts * (sum(other["hours"].values()) + more)
            assert waiting["wait_hours"] == pytest.approx(hours)


def test_partition_key_is_the_day_in_the_timezone_of_the_dataset(several: dict[str, Any]) -> None:
    """A daily run has the day before, and a training has its own day: in Tokyo, 6:15 is the day before in UTC."""
    keys = {name: dag["key"] for name, dag in several["dags"].items()}
    assert keys["daily_recommendations"] == "2026-03-09"
    assert keys["weekly_training"] == "2026-03-15"
    assert keys["daily_recommendations__books"] == "2026-03-10"
    assert keys["weekly_training__books"] == "2026-03-16"


def test_a_wrong_dataset_is_an_import_error_of_its_own_file(several: dict[str, Any]) -> None:
    assert set(several["errors"]) == {f"nightrank_{name}.py" for name in (*WRONG, "Big")}
    for name, (_, words) in WRONG.items():
        error = several["errors"][f"nightrank_{name}.py"]
        for word in (*words, f"the dataset '{name}' (Airflow Variable 'nightrank_{name}')", "what to do"):
            assert word in error, (name, error)
    assert "the option name='Big__Name'" in several["errors"]["nightrank_Big.py"]


def test_stages_read_the_variable_and_the_connection_of_their_dataset(several: dict[str, Any]) -> None:
    kind, message = several["stages"]["daily_recommendations__books"]
    assert (kind, "--config books.yaml" in message) == (RETRIED, True), message
    kind, message = several["stages"]["daily_recommendations"]
    assert (kind, "--config conf/datasets/generated.yaml" in message) == (RETRIED, True), message


def test_errors_of_settings_name_the_variable_of_the_dataset(
    airflow_setup: AirflowSetup, run_airflow_script: Callable[..., Any], tmp_path: Path
) -> None:
    """The file nightrank_default.py takes the place of default_dataset.py, and changes no id."""
    (tmp_path / "airflow_dags").symlink_to(ROOT / "airflow_dags")
    (tmp_path / "nightrank_default.py").write_text(FILE.format(arguments="retries=7"))
    (tmp_path / "nightrank_books.py").write_text(FILE.format(arguments='"books"'))
    books = {**airflow_setup.home.variable, "spark_connection": 7}
    described = run_airflow_script(
        "describe_datasets",
        NOW,
        AIRFLOW__CORE__DAGS_FOLDER=str(tmp_path),
        PYTHONPATH=str(tmp_path),
        AIRFLOW_VAR_NIGHTRANK_BOOKS=json.dumps(books),
        PLANNED_ENDS=str(airflow_setup.planned_ends),
    )
    assert described["errors"] == {}
    dag = described["dags"]["daily_recommendations"]
    assert (dag["file"], dag["retries"]) == ("nightrank_default.py", [7])
    assert set(described["dags"]) == NAMES | {f"{name}__books" for name in NAMES}
    kind, message = described["stages"]["daily_recommendations__books"]
    assert kind == NOT_RETRIED
    assert "the Airflow Variable 'nightrank_books' has spark_connection=" in message
