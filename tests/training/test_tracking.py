"""MLflow with a real server and without one: what is mirrored from a local lake and from an object store."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from storage import file_io
from storage.paths import LakePaths
from tests.etl.lakes import servers
from tests.training.mlflow_servers import mlflow_server
from tests.training.test_registry import decide, description
from training.registry import mlflow_mirror
from training.registry.comparison import Comparison, ExperimentOutcome, TrainingOutcome
from training.registry.mlflow_comparison import track_comparison
from training.registry.search import write_pruned

pytestmark = [pytest.mark.timeout(600), pytest.mark.processes]

VERSION = "nightrank.version"
PARAMS = {"train": {"seed": 3}, "model": {"top_mlp": [4]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tracking server with a SQLite store."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as address:
        yield address


@pytest.fixture
def empty_cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.bucket(tmp_path_factory.mktemp("s3"), "tracked"):
        yield "s3a://tracked"


def of(name: str, version: str) -> dict[str, Any]:
    return {**description(version), "name": name, "created_at": "2026-01-05T03:00:00Z"}


def runs(client: MlflowClient, name: str) -> list[Any]:
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_a_server_gets_one_run_and_one_version_a_training(
    server: str,
    tmp_path: Path,
    empty_cwd: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    lake = LakePaths(str(tmp_path / "lake"))
    for version in ("v1", "v1", "v2", "v1"):
        mlflow_mirror.track_training(lake, of("local", version), PARAMS)
    assert "MLflow was not updated" not in caplog.text
    client = MlflowClient(server, server)
    assert sorted(run.data.tags[VERSION] for run in runs(client, "local")) == ["v1", "v2"]
    assert {run.info.status for run in runs(client, "local")} == {"FINISHED"}
    assert len(client.search_model_versions("name='local'")) == 2
    challenger = client.get_model_version_by_alias("local", "challenger")
    assert challenger.tags == {
        VERSION: "v1",
        "nightrank.source": (tmp_path / "lake/models/local/v1").as_uri(),
    }
    assert challenger.source == f"runs:/{challenger.run_id}/model"  # a server refuses paths of our disk
    run = client.get_run(challenger.run_id)
    assert run.data.tags["nightrank.source"] == challenger.tags["nightrank.source"]
    assert run.data.params == {"train.seed": "3", "model.top_mlp": "[4]"}
    assert run.data.metrics["test.auc"] == 0.75
    history = client.get_metric_history(challenger.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(20, 0.6), (40, 0.5)]
    assert list(empty_cwd.iterdir()) == []


def test_parameters_with_names_of_features_that_mlflow_refuses_get_other_names(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    kept = ["size", "gr\u00f6\u00dfe", "item/sku: a-b"]
    refused = ["item (sku)", "item [sku]", "a//b", "a/", "..", "line\n", "x" * 300, "x" * 301, "\U0001f600"]
    shares = {name: number / 100 for number, name in enumerate([*kept, *refused])}
    params = {"train": {"unknown_share": shares}}
    mlflow_mirror.track_training(LakePaths(str(tmp_path)), of("names", "v1"), params)
    assert "MLflow was not updated" not in caplog.text
    client = MlflowClient(server, server)
    (run,) = runs(client, "names")
    assert run.info.status == "FINISHED"
    logged = run.data.params
    assert sorted(logged.values()) == sorted(str(share) for share in shares.values())
    for name in kept:
        assert logged[f"train.unknown_share.{name}"] == str(shares[name])
    (of_item,) = [name for name, value in logged.items() if value == str(shares["item (sku)"])]
    assert of_item.startswith("train.unknown_share.item _sku__")
    assert client.get_model_version_by_alias("names", "challenger").run_id == run.info.run_id


def test_a_server_gets_the_uri_of_a_lake_on_an_object_store(
    server: str,
    bucket: str,
    empty_cwd: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    lake = LakePaths(f"{bucket}/lake")
    mlflow_mirror.prepare(lake)
    mlflow_mirror.track_training(lake, of("m", "v1"), PARAMS)
    decide(lake, "2026-01-05", "v1")
    assert "MLflow was not updated" not in caplog.text
    champion = MlflowClient(server, server).get_model_version_by_alias("m", "champion")
    assert champion.source == "s3://tracked/lake/models/m/v1"  # MLflow does not know s3a
    assert champion.tags == {VERSION: "v1", "nightrank.source": champion.source}
    assert list(empty_cwd.iterdir()) == []


def test_without_a_server_nothing_is_mirrored_of_a_lake_on_an_object_store(
    bucket: str, empty_cwd: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    caplog.set_level(logging.INFO, "nightrank.tracking")
    lake = LakePaths(f"{bucket}/unmirrored")
    mlflow_mirror.prepare(lake)
    mlflow_mirror.track_training(lake, of("m", "v1"), PARAMS)
    assert caplog.messages == [
        f"MLflow is not updated: MLFLOW_TRACKING_URI is not set, and the lake {lake.root} is not a local "
        "folder, so it has no local MLflow store"
    ]
    decide(lake, "2026-01-05", "v1")
    assert list(empty_cwd.iterdir()) == []


def test_a_lake_of_a_file_uri_has_its_store_in_its_folder(
    tmp_path: Path, empty_cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    lake = LakePaths(f"file://{tmp_path}")
    mlflow_mirror.track_training(lake, of("m", "v1"), PARAMS)
    assert (tmp_path / "mlflow.db").is_file()
    registered = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").get_model_version_by_alias("m", "challenger")
    assert registered.source == (tmp_path / "models/m/v1").as_uri()
    assert list(empty_cwd.iterdir()) == []


def test_a_run_that_a_killed_job_began_is_completed(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    lake = LakePaths(str(tmp_path))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", dies)
        with pytest.raises(KeyboardInterrupt):
            mlflow_mirror.track_training(lake, of("killed", "v1"), PARAMS)
    client = MlflowClient(server, server)
    assert [run.info.status for run in runs(client, "killed")] == ["RUNNING"]
    mlflow_mirror.track_training(lake, of("killed", "v1"), PARAMS)
    assert "MLflow was not updated" not in caplog.text
    (run,) = runs(client, "killed")
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(20, 0.6), (40, 0.5)]
    assert client.get_model_version_by_alias("killed", "challenger").run_id == run.info.run_id


def test_two_jobs_that_make_the_run_at_once_agree_on_one(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second makes its run after both have looked for one and found none."""
    client = MlflowClient(server, server)
    create = MlflowClient.create_run
    created_ids: list[str] = []

    def create_beside(self: MlflowClient, *args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as patch, ThreadPoolExecutor(1) as other:
            patch.setattr(MlflowClient, "create_run", create)
            run = other.submit(mlflow_mirror.run_of, client, of("twice", "v1"), "s3://x").result()
            created_ids.append(run.info.run_id)
        return create(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "create_run", create_beside)
    assert mlflow_mirror.run_of(client, of("twice", "v1"), "s3://x").info.run_id == created_ids[0]
    assert [run.info.run_id for run in runs(client, "twice")] == created_ids


def test_a_comparison_is_one_run_with_a_run_below_it_for_each_training(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    lake = LakePaths(str(tmp_path / "lake"))
    outcomes, params = [], {}
    for name, loss in (("base", 0.4), ("better", 0.3)):
        trainings = []
        for seed in (0, 1):
            version = f"{name}{seed}"
            model = {**of("compared", version), "stopped": None}
            measures = {"auc": 0.8, "log_loss": loss + seed / 100, "normalized_entropy": 0.9}
            model["metrics"] = {"validation": measures, "test": measures}
            file_io.replace_json(f"{lake.models('compared')}/{version}/model.json", model)
            trainings.append(TrainingOutcome.of(seed, model, 20))
            params[version] = {"train": {"seed": seed}}
        outcomes.append(ExperimentOutcome(name, {}, trainings))
    outcomes.append(ExperimentOutcome("failed", {}, [TrainingOutcome(0, "none", "loss is nan")]))
    record = {**of("compared", "bad0"), "stopped": "pruned"}
    del record["metrics"], record["baselines"]
    write_pruned(f"{lake.models('compared')}/bad0", record)
    pruned = TrainingOutcome.of_pruned(0, record, 20, 10)
    outcomes.append(ExperimentOutcome("bad", {}, [pruned], 4))
    params["bad0"] = {"train": {"seed": 0}}
    comparison = Comparison("trial", "log_loss", outcomes)
    for _ in range(2):  # the second adds nothing
        track_comparison(lake, "compared", "2026-01-05", comparison, params)
    assert "MLflow was not updated" not in caplog.text
    client = MlflowClient(server, server)
    (parent,) = [run for run in runs(client, "compared") if "nightrank.comparison" in run.data.tags]
    children = [run for run in runs(client, "compared") if run.info.run_id != parent.info.run_id]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(run.info.run_name for run in children) == [
        "bad, seed 0",
        "base, seed 0",
        "base, seed 1",
        "better, seed 0",
        "better, seed 1",
    ]
    assert {run.data.tags[VERSION]: run.data.params["train.seed"] for run in children} == {
        "bad0": "0",
        "base0": "0",
        "base1": "1",
        "better0": "0",
        "better1": "1",
    }
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    assert parent.data.tags["best"] == "better"
    assert parent.data.metrics["best.validation.log_loss"] == pytest.approx(0.305)
    assert client.search_model_versions("name='compared'") == []
    again = Comparison("second trial", "log_loss", outcomes)  # of the same models
    track_comparison(lake, "compared", "2026-01-05", again, params)
    parents = {run.info.run_id for run in runs(client, "compared") if "nightrank.comparison" in run.data.tags}
    of_parents = Counter(run.data.tags.get("mlflow.parentRunId") for run in runs(client, "compared"))
    assert of_parents == {None: 2, **dict.fromkeys(parents, 5)}
    (bad,) = [run for run in children if run.data.tags[VERSION] == "bad0"]
    assert bad.data.tags["nightrank.pruned"] == "0.5"
    assert not [name for name in bad.data.metrics if name.startswith(("test.", "validation."))]
    assert not [run for run in children if run is not bad and "nightrank.pruned" in run.data.tags]
