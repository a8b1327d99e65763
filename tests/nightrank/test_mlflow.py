"""MLflow loads registered models, which score raw rows: from the lake's store, a server, and as a service."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml

import nightrank
from nightrank.mlflow_model import _load_pyfunc
from storage.dataset import read_dataset
from storage.paths import LakePaths
from tests.nightrank.conftest import RUN_DATE, World
from tests.training.mlflow_servers import mlflow_server, scoring_server
from training.registry import mlflow_mirror
from training.registry.model_json import read_description

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@contextmanager
def tracking_at(uri: str) -> Iterator[None]:
    """The client uses this store. MLflow also sets an environment variable, which jobs read."""
    before, variable = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        if variable is not None:
            os.environ["MLFLOW_TRACKING_URI"] = variable


@pytest.fixture
def store(world: World) -> Iterator[None]:
    """The client uses the store of the lake."""
    with tracking_at(f"sqlite:///{world.root}/mlflow.db"):
        yield


def model_folder(world: World) -> Path:
    champion = world.lake.champion(use_refit=False)
    return Path(world.root) / "models/generated" / champion.version


def test_the_champion_and_its_refit_are_loaded_from_the_registry(world: World, store: None) -> None:
    rows = world.raw_rows().head(200)
    for name, use_refit in (("generated", False), ("generated-refit", True)):
        loaded = mlflow.pyfunc.load_model(f"models:/{name}@champion")
        expected = world.lake.champion(use_refit=use_refit)
        scores = loaded.predict(rows)
        np.testing.assert_array_equal(scores, expected.score(rows))
        assert scores.index.equals(rows.index)
        assert loaded.metadata.get_input_schema().input_names() == list(expected.workflow.raw_columns)
        assert loaded.metadata.metadata["raw_types"] == expected.workflow.raw_columns
        nullable = rows.convert_dtypes()
        np.testing.assert_array_equal(loaded.predict(nullable.astype({"C1": object})), scores)
    with pytest.raises(nightrank.DataError, match=r"column I1, row 0: 1\.5 is not a whole number"):
        loaded.predict(rows.assign(I1=1.5))


def test_a_moved_lake_and_a_copied_file_are_found(world: World, tmp_path: Path) -> None:
    """In the model's folder, the lake is where the folder is; elsewhere, where the file says."""
    rows, folder = world.raw_rows().head(20), model_folder(world)
    expected = world.lake.champion(use_refit=False).score(rows)
    moved = tmp_path / "moved"
    for name in ("models/generated", "workflow", "_data/workflow"):
        shutil.copytree(Path(world.root) / name, moved / name)
    there = moved / "models/generated" / folder.name
    values = yaml.safe_load((there / "MLmodel").read_text())
    assert values["flavors"]["nightrank"]["lake"] == str(Path(world.root).resolve())
    values["flavors"]["nightrank"]["lake"] = str(tmp_path / "nowhere")
    (there / "MLmodel").write_text(yaml.safe_dump(values))
    np.testing.assert_array_equal(mlflow.pyfunc.load_model(str(there)).predict(rows), expected)

    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(folder / "MLmodel", alone)
    np.testing.assert_array_equal(mlflow.pyfunc.load_model(str(alone)).predict(rows), expected)
    shutil.copy(there / "MLmodel", alone)
    with pytest.raises(nightrank.DataError, match="has no complete model"):
        _load_pyfunc(str(alone))


def test_a_server_that_refuses_paths_gets_the_file(world: World, tmp_path: Path) -> None:
    """A training that is tracked twice is one run and one version."""
    rows, champion = world.raw_rows().head(20), world.lake.champion(use_refit=False)
    description = read_description(str(model_folder(world)))
    with mlflow_server(tmp_path) as address, tracking_at(address):
        for _ in range(2):
            mlflow_mirror.track_training(
                LakePaths(world.root),
                description,
                {"train": {"seed": 1}},
                lambda: champion.workflow.raw_columns,
            )
        client = mlflow.MlflowClient()
        (registered,) = client.search_model_versions("name='generated'")
        (used,) = client.get_run(registered.run_id).inputs.dataset_inputs
        assert used.dataset.digest == read_dataset(LakePaths(world.root), RUN_DATE).digest
        assert json.loads(used.dataset.source) == {"uri": f"{world.root}/datasets/dt={RUN_DATE}"}
        assert json.loads(used.dataset.profile)["train_rows"] == description["train_rows"] > 1000
        assert [tag.value for tag in used.tags] == ["training"]
        assert registered.source == f"runs:/{registered.run_id}/model"
        loaded = mlflow.pyfunc.load_model("models:/generated@challenger")
        np.testing.assert_array_equal(loaded.predict(rows), champion.score(rows))


def test_a_service_of_mlflow_scores_json(world: World, tmp_path: Path) -> None:
    rows = world.raw_rows().head(5)
    split = rows.astype(object).where(rows.notna(), None).to_dict(orient="split", index=False)
    body = json.dumps({"dataframe_split": split}).encode()
    with scoring_server(tmp_path, str(model_folder(world)), {}) as address:
        request = Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=120) as answer:
            answered: dict[str, Any] = json.load(answer)
    scores = pd.DataFrame(answered["predictions"]).to_numpy().ravel()
    np.testing.assert_allclose(scores, world.lake.champion(use_refit=False).score(rows), rtol=1e-6)
