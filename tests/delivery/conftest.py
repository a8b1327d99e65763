"""Fixtures of delivery: published lists of RUN_DATE with business rules, and the candidates of DAY_AFTER."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from jobs.build_candidates import run as build_candidates
from jobs.score_daily import run as score_daily
from scoring.model import context_features
from setup import jars
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.run_context import RunContext
from tests.delivery.postgres import Server, postgres
from tests.etl.lakes import servers
from tests.scoring.reference_scores import ReferenceScores, make_reference
from tests.scoring.scoring_lake import CONTEXT, DAY_AFTER, RUN_DATE, EncodedContext, make_config, publish_lake
from training.registry import mlflow_mirror
from training.registry.versions import ChampionDecision, record_decision


@dataclass
class PublishedRuns:
    """A lake with published lists of RUN_DATE and candidates of DAY_AFTER. Tests do not change it."""

    lake: LakePaths
    reference: ReferenceScores
    spark: SparkSession

    def config_of(self, **sections: Any) -> Config:
        """The configuration with whole sections replaced."""
        return make_config(Path(self.lake.root), **sections)

    def job(self, run_date: str, **sections: Any) -> RunContext:
        """The context of a job."""
        return RunContext("test", self.config_of(**sections), run_date, open_session=lambda _: self.spark)

    def rows(self, partition: Partition) -> pd.DataFrame:
        """The rows of a partition, in file order."""
        files = data_files(partition, read_manifest(partition))
        return pa.concat_tables(pq.read_table(path, partitioning=None) for path in files).to_pandas()

    @property
    def lists(self) -> pd.DataFrame:
        """The published lists of RUN_DATE."""
        return self.rows(self.lake.recommendations.partition(RUN_DATE))


def score_section(**settings: Any) -> dict[str, Any]:
    """The section `score` with some settings replaced."""
    return {"k": 5, "context": CONTEXT, "device": "cpu", **settings}


def _without_workflow(patch: pytest.MonkeyPatch) -> None:
    """Replaces the workflow and MLflow, which the lake does not have."""
    patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    patch.setattr(context_features, "load_local", lambda *_: EncodedContext())


@pytest.fixture(autouse=True)
def without_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No workflow and no MLflow in any test."""
    _without_workflow(monkeypatch)


@pytest.fixture(scope="session")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PublishedRuns:
    """Two runs on one lake."""
    reference = make_reference(tmp_path_factory.mktemp("delivered"))
    with pytest.MonkeyPatch.context() as patch:
        _without_workflow(patch)
        root = tmp_path_factory.mktemp("runs")
        runs = PublishedRuns(LakePaths(publish_lake(root, reference).lake), reference, spark)
        shelves = {"sku": reference.items.item_key, "shelf": [f"s{index % 3}" for index in range(23)]}
        pd.DataFrame(shelves).to_csv(root / "shelves.csv", index=False)
        attributes = {
            "shelf": {"path": "{lake}/shelves.csv", "format": "csv", "key": "sku", "column": "shelf"}
        }
        boost = {"attribute": "shelf", "values": {"s1": 1.5}}
        rules = {"attributes": attributes, "boost": boost, "exploration": {"share": 0.2}}
        run: Callable[..., RunContext] = runs.job
        record_decision(runs.lake, "toy", RUN_DATE, ChampionDecision("m1", None, True, "m1", "the first"))
        build_candidates(run(RUN_DATE))
        score_daily(run(RUN_DATE, score=score_section(rules=rules)))
        build_candidates(run(DAY_AFTER))
        return runs


@pytest.fixture(scope="session")
def driver_jar() -> Path:
    """PostgreSQL's JDBC driver."""
    (path,) = servers.jar_paths(jars.postgresql_driver())
    return path


@pytest.fixture(scope="session")
def database(driver_jar: Path) -> Iterator[Server]:
    """A PostgreSQL server for all tests."""
    try:
        with postgres() as server:
            yield server
    except servers.Unavailable as error:
        servers.missing(str(error))
