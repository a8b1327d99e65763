"""The DAGs without a scheduler: that they parse, what they promise, how jobs' ends are taken, and a day by dag.test()."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from conf.load import load_config
from jobs.chain.steps import RunPlan
from tests.airflow.world import CONFIG, TRAINED, World

NAMES = {"daily_recommendations", "weekly_training", "backfill_recommendations"}
HOPELESS, RETRIED = "AirflowFailException", "AirflowException"


@pytest.fixture(scope="module")
def parsed(inside: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = inside("describe")
    assert found["errors"] == {}
    return found


@pytest.fixture(scope="module")
def described(parsed: dict[str, Any]) -> dict[str, Any]:
    # The scheduler's tests put a DAG of theirs into the folder, whichever come first.
    return {name: dag for name, dag in parsed["dags"].items() if name != "late_night"}


def test_a_run_knows_its_day_from_its_param_or_its_key(parsed: dict[str, Any]) -> None:
    days = parsed["days"]
    assert (days["param"], days["key"]) == ("2026-01-04", "2026-03-01")
    assert days["day before the key"] == "2026-02-28"
    assert days["days"] == ["2026-02-27", "2026-02-28", "2026-03-01"]
    for name, said in (
        ("no date", "the Param run_date '2026-02-30' is not a date"),
        ("other form", "write 2026-01-04"),
        ("backwards", "are -1 days"),
    ):
        assert days[name].startswith(HOPELESS)
        assert said in days[name]


def test_every_dag_parses_and_shows_whose_it_is_and_what_it_does(described: dict[str, Any]) -> None:
    assert set(described) == NAMES
    for name, dag in described.items():
        assert dag["owners"] == ["nightrank"], name
        assert "nightrank" in dag["tags"], name
        assert dag["doc"].startswith("### "), name
        assert dag["callbacks"], name
        assert (dag["runs"], dag["catchup"]) == (1, False), name
    assert [described[name]["deadline"] for name in ("daily_recommendations", "weekly_training")] == [
        True
    ] * 2


def test_a_day_has_the_stages_of_nightly_in_their_order(described: dict[str, Any]) -> None:
    sink = "deliver.sinks=[{kind: json_lines, name: files, path: /out}]"
    for overrides in ([sink, "measure.against=test_split"], ["measure.against=test_split"]):
        plan = RunPlan(load_config(CONFIG, [*overrides, "lake=/nowhere"]), TRAINED, retrain=False)
        expected = [step.name for step in (*plan.steps_before_gate(), *plan.steps_after_gate())]
        order = described["daily_recommendations"]["order"]
        assert [name for name in order if name in expected] == expected
    training = RunPlan(load_config(CONFIG, ["lake=/nowhere"]), TRAINED, retrain=True)
    order = described["weekly_training"]["order"]
    assert [name for name in order if name in ("build_features", "train_model", "evaluate_model")] == [
        step.name for step in training.steps_before_gate()
    ]


def test_jobs_have_a_pool_a_timeout_and_retries_and_a_failed_night_cannot_look_good(
    described: dict[str, Any],
) -> None:
    for name in ("daily_recommendations", "weekly_training"):
        dag = described[name]
        pooled = [task for task, pool in dag["pools"].items() if pool == "nightrank_spark"]
        assert {"quality_gate", "build_features"} <= set(pooled)
        assert all(dag["timeouts"][task] and dag["retries"][task] == 2 for task in pooled)
    below = described["daily_recommendations"]["below"]
    assert [task for task, following in below.items() if not following] == ["night_is_done"]
    assert "night_is_done" in below["measure_recommendations"]


@pytest.fixture(scope="module")
def ends(world: World, inside: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = inside(
        "end_jobs", "2", "3", "4", "1", "134", "kill", FATES=str(world.folder / "fates")
    )
    return found


@pytest.mark.parametrize("end, raised", [("2", HOPELESS), ("3", HOPELESS)])
def test_bad_configuration_and_bad_data_are_not_tried_again(
    ends: dict[str, Any], end: str, raised: str
) -> None:
    assert ends[end][0] == raised
    assert f"report ended with exit code {end}" in ends[end][1]


@pytest.mark.parametrize("end, code", [("4", 4), ("1", 1), ("134", 134), ("kill", 137)])
def test_every_other_end_is_worth_a_retry(ends: dict[str, Any], end: str, code: int) -> None:
    assert ends[end][0] == RETRIED
    assert f"report ended with exit code {code}: worth a retry" in ends[end][1]
    for word in ("--set score.k=3", "--set score.k=4", f"--run-date {TRAINED}"):
        assert word in ends[end][1]


REFUSED = [
    ("missing connection", {}, "the Airflow connection 'spark_default' does not exist"),
    ("missing variable", None, "the Airflow Variable 'nightrank' does not exist"),
    ("missing key", {"home": None}, "lacks the keys ['home']"),
    ("unknown key", {"profile": "x"}, "unknown keys ['profile']"),
    ("no default profile", {"profiles": {"train_model": "x"}}, 'needs profiles={"default"'),
    ("no list", {"set": "lake=/x"}, "needs set="),
    ("no list of keys", {"param_keys": "gate."}, "needs param_keys="),
    ("no jobs", {"home": "/nowhere"}, "no folder jobs"),
    ("no program", {"spark_submit": "/nowhere/spark-submit"}, "no program on this worker"),
]


@pytest.fixture(scope="module")
def refusals(world: World, inside: Callable[..., Any]) -> dict[str, Any]:
    """Name → class and text of what a task raised that found this Variable, or this connection."""
    cases = {}
    for name, change, _ in REFUSED:
        values = {**world.home.variable, **(change or {})}
        cases[name] = (
            None if change is None else {key: value for key, value in values.items() if value is not None}
        )
    found: dict[str, Any] = inside("refuse", json.dumps(cases))
    return found


@pytest.mark.parametrize("name, said", [(name, said) for name, _, said in REFUSED])
def test_what_is_not_set_up_is_a_clear_failure_and_never_yarn(
    refusals: dict[str, Any], name: str, said: str
) -> None:
    kind, text = refusals[name]
    assert kind == HOPELESS
    assert said in text
    assert "what to do" in text


# name → the Param `set`, the Variable's param_keys, what refuses it
NOT_ALLOWED: dict[str, tuple[list[str], list[str] | None, str]] = {
    "a foreign URL": (
        ["deliver.sinks=[{kind: jdbc, url: 'jdbc:postgresql://evil/x'}]"],
        None,
        "deliver.sinks",
    ),
    "a remote jar": (
        ["score.k=3", "deliver.sinks.0.driver_jar=s3a://evil/x.jar"],
        None,
        "deliver.sinks.0.driver_jar",
    ),
    "a web address": (["watch.push_gateway=http://evil:9091"], None, "watch.push_gateway"),
    "another lake": (["lake=s3a://evil/lake"], None, "lake"),
    "another log": (["log.path=/etc/*"], None, "log.path"),
    "another name": (["name=../../x"], None, "name"),
    "a file as the model": (["model=/tmp/model.yaml"], None, "model"),
    "a whole section": (["train={reading: {staging_folder: /home}}"], None, "train"),
    "a folder": (["train.reading.staging_folder=/home"], None, "train.reading.staging_folder"),
    "a section below a prefix": (["score.stop.x={y: 1}"], None, "a mapping or a nested list"),
    "a section in a list": (["quality.exempt=[{path: /x}]"], None, "a mapping or a nested list"),
    "a section in block style": (["gate.drift=path: /x"], None, "a mapping or a nested list"),
    "a section with a tag": (["gate.drift=!!map {path: /x}"], None, "a mapping or a nested list"),
    "a likely name": (["gated=1"], None, "gated"),
    "no key": (["=1"], None, "not of the form a.b=value"),
    "an option": (["--config=/tmp/x.yaml"], None, "--config"),
    "what the deployer took away": (["score.k=3"], ["gate."], "score.k"),
    "anything, where nothing is allowed": (["score.k=3"], [], "it may name nothing"),
}
ALLOWED: dict[str, tuple[list[str], list[str] | None]] = {
    "nothing": ([], None),
    "limits and counts": (
        ["quality.psi_stop=0.5", "score.k=3", "train.retrain.start=fresh", "model.top_mlp=[8, 1]"],
        None,
    ),
    "what the deployer added": (["deliver.sinks=[{kind: json_lines}]"], ["deliver.sinks"]),
}


@pytest.fixture(scope="module")
def answers(world: World, inside: Callable[..., Any]) -> dict[str, Any]:
    """Name → what a stage, the sensor and a back-fill made of a Param `set`: class and text of what they raised."""
    cases = {name: (asked, keys) for name, (asked, keys, _) in NOT_ALLOWED.items()} | ALLOWED
    found: dict[str, Any] = inside("ask", json.dumps(cases), FATES=str(world.folder / "fates"))
    return found


@pytest.mark.parametrize("name", NOT_ALLOWED)
def test_who_triggers_a_run_cannot_send_it_elsewhere(answers: dict[str, Any], name: str) -> None:
    """Before any job is started, and also where only one task is cleared and runs again."""
    said = NOT_ALLOWED[name][2]
    for place in ("stage", "sensor", "backfill"):
        kind, text = answers[name][place]
        assert kind == HOPELESS, (place, text)
        assert said in text, place
        assert "what to do" in text, place


@pytest.mark.parametrize("name", ALLOWED)
def test_who_triggers_a_run_can_change_how_it_computes(answers: dict[str, Any], name: str) -> None:
    words = [f"--set {each}" for each in ALLOWED[name][0]]
    for place in ("stage", "sensor"):
        kind, text = answers[name][place]
        assert (kind, "ended with exit code 4" in text) == (RETRIED, True), (place, text)
        assert all(word in text for word in words), place
    assert answers[name]["backfill"][0] == ""


@pytest.mark.timeout(600)
def test_a_training_and_a_day_run_by_dag_test(trained: dict[str, Any], world: World) -> None:
    weekly, daily = trained["weekly_training"], trained["daily_recommendations"]
    assert (weekly["state"], daily["state"]) == ("success", "success")
    assert {task for task, state in weekly["tasks"].items() if state == "skipped"} == {"build_features_again"}
    # There is no day before whose lists could be measured, and lists are made of candidates.
    assert {task for task, state in daily["tasks"].items() if state == "skipped"} == {
        "score_rows",
        "measure_recommendations",
    }
    manifest = json.loads((world.lake / f"recommendations/dt={TRAINED}/_MANIFEST.json").read_text())
    promotion = json.loads((world.lake / f"models/generated/promotions/dt={TRAINED}.json").read_text())
    assert manifest["facts"]["model_version"] == promotion["champion_after"]
    assert manifest["rows"] == manifest["facts"]["users"] * 10
    files = [gzip.decompress(path.read_bytes()) for path in world.delivered.rglob("*.json.gz")]
    assert sum(len(each.splitlines()) for each in files) == manifest["facts"]["users"]
