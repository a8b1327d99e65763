"""Two nights of hand-made lists: RUN_DATE with rules, which is left alone, and what is needed to score DAY_AFTER."""

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
from jobs.stages.build_candidates import run as build_candidates
from jobs.stages.score_daily import run as score_daily
from scoring.model import context_features
from setup import jars
from storage.manifest import data_files, read_manifest
from storage.paths import Lake, Partition
from storage.run_context import RunContext
from tests.delivery.postgres import Server, postgres
from tests.etl.lakes import servers
from tests.scoring.lake import CONTEXT, DAY_AFTER, RUN_DATE, EncodedContext, make_config, make_lake
from tests.scoring.world import World, make_world
from training.registry import mlflow_mirror
from training.registry.versions import Decision, record_decision


@dataclass
class Nights:
    """`config_of(**sections)` is the configuration with whole sections replaced."""

    lake: Lake
    world: World
    spark: SparkSession

    def config_of(self, **sections: Any) -> Config:
        return make_config(Path(self.lake.root), **sections)

    def job(self, run_date: str, **sections: Any) -> RunContext:
        return RunContext("test", self.config_of(**sections), run_date, _spark=self.spark)

    def rows(self, partition: Partition) -> pd.DataFrame:
        files = data_files(partition, read_manifest(partition))
        return pa.concat_tables(pq.read_table(path, partitioning=None) for path in files).to_pandas()

    @property
    def lists(self) -> pd.DataFrame:
        """Those of RUN_DATE."""
        return self.rows(self.lake.recommendations.partition(RUN_DATE))


def score_section(**settings: Any) -> dict[str, Any]:
    return {"k": 5, "context": CONTEXT, "device": "cpu", **settings}


def _without_workflow(patch: pytest.MonkeyPatch) -> None:
    """The world's features were encoded by nobody, and its models stand in no registry."""
    patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    patch.setattr(context_features, "load_local", lambda *_: EncodedContext())


@pytest.fixture(autouse=True)
def without_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_workflow(monkeypatch)


@pytest.fixture(scope="session")
def nights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    world = make_world(tmp_path_factory.mktemp("delivered"))
    with pytest.MonkeyPatch.context() as patch:
        _without_workflow(patch)
        root = tmp_path_factory.mktemp("nights")
        made = Nights(Lake(make_lake(root, world).lake), world, spark)
        shelves = {"sku": world.items.item_key, "shelf": [f"s{index % 3}" for index in range(23)]}
        pd.DataFrame(shelves).to_csv(root / "shelves.csv", index=False)
        attributes = {
            "shelf": {"path": "{lake}/shelves.csv", "format": "csv", "key": "sku", "column": "shelf"}
        }
        boost = {"attribute": "shelf", "values": {"s1": 1.5}}
        rules = {"attributes": attributes, "boost": boost, "exploration": {"share": 0.2}}
        run: Callable[..., RunContext] = made.job
        record_decision(made.lake, "toy", RUN_DATE, Decision("m1", None, True, "m1", "the first"))
        build_candidates(run(RUN_DATE))
        score_daily(run(RUN_DATE, score=score_section(rules=rules)))
        build_candidates(run(DAY_AFTER))
        return made


@pytest.fixture(scope="session")
def driver_jar() -> Path:
    (path,) = servers.jar_paths(jars.postgresql_driver())
    return path


@pytest.fixture(scope="session")
def database(driver_jar: Path) -> Iterator[Server]:
    try:
        with postgres() as server:
            yield server
    except servers.Unavailable as error:
        servers.missing(str(error))
