"""The accelerator's jar, and the frames of whole jobs, recorded once for all tests of plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from setup import jars
from spark.profile import read_properties
from tests.plans import runs
from tests.plans.accelerator import Accelerator, loaded
from tests.plans.recorder import Recorded, record

ROOT = Path(__file__).parents[2]


def usable_jar() -> Path | str:
    """The accelerator's jar, or why there is none."""
    jar = jars.accelerator()
    return (
        jar.path
        if jar.is_there
        else f"{jar.file_name} is not in {jar.path.parent}: `make jars` fetches it (600 MB)"
    )


@pytest.fixture(scope="session")
def jar() -> Path:
    jar_or_problem = usable_jar()
    if isinstance(jar_or_problem, str):
        if os.environ.get("CI"):
            pytest.fail(jar_or_problem)
        pytest.skip(jar_or_problem)
    return jar_or_problem


@pytest.fixture(scope="session")
def accelerator(jar: Path, spark: SparkSession) -> Iterator[Accelerator]:
    """The real accelerator under the settings that conf/spark/etl-gpu.conf gives its SQL part."""
    profile = read_properties(ROOT / "conf/spark/etl-gpu.conf")
    settings = {key: value for key, value in profile.items() if key.startswith("spark.rapids.sql.")}
    with loaded(spark, jar, settings) as plugin:
        yield plugin


@pytest.fixture(scope="session")
def recorded(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[str], Recorded]:
    """A run of tests.plans.runs, its frames explained where the jar is there; each run is made once."""
    known: dict[str, Recorded] = {}

    def recorded_run(name: str) -> Recorded:
        if name not in known:
            explainer = None
            if isinstance(usable_jar(), Path) and runs.RUNS[name].on_gpu:
                explainer = request.getfixturevalue("accelerator")
            known[name] = record(spark, name, tmp_path_factory.mktemp("plans"), explainer)
        return known[name]

    return recorded_run
