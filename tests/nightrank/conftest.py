"""A lake that one run of nightly published, for the tests of the public interface."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
import yaml

import nightrank
from conf.load import load_config
from etl.synthetic.generate import generate_days, generate_settings, generated_dates
from spark.workers import LocalWorkers
from storage.paths import LakePaths
from tests.etl.prepare.small_shop import no_session
from tests.processes import ROOT
from tests.stages import run_retraining

FIRST_DAY, RUN_DATE = "2026-01-01", "2026-01-04"
COLUMNS = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


@dataclass(frozen=True)
class World:
    """The folder `demo_out/lake` is the lake, as in the documentation.

    Attributes:
        folder: the working directory of the run.
        config: the file of the configuration.
    """

    folder: Path
    config: Path

    @property
    def root(self) -> str:
        return str(self.folder / "demo_out/lake")

    @property
    def lake(self) -> nightrank.Lake:
        return nightrank.open(self.root)

    def raw_rows(self) -> pd.DataFrame:
        """The rows of the run date that were not rejected, by row_id, read by pandas.

        Integers with nulls become floats with NaN.
        """
        (file,) = (self.folder / f"demo_out/lake/raw/dt={RUN_DATE}").glob("*.tsv*")
        lines = file.read_text().split("\n")
        row_ids = sorted(self.lake.table("features", RUN_DATE).arrow(["row_id"]).column(0).to_pylist())
        text = "\n".join(lines[row_id] for row_id in row_ids)
        texts = {name: str for name in COLUMNS if name.startswith("C")}
        rows = pd.read_csv(StringIO(text), sep="\t", names=COLUMNS, dtype=texts)
        return rows.set_axis(pd.Index(row_ids), axis=0)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The run of one date, with training, without a JVM, in this process."""
    folder = tmp_path_factory.mktemp("world")
    settings = {
        "extends": str(ROOT / "conf/datasets/generated.yaml"),
        "lake": str(folder / "demo_out/lake"),
        "generate": {"days": 4, "rows_per_day": 4000, "users": 300, "items": 80, "files_per_day": 1},
        "split": {"train_days": 2, "min_train_days": 2},
        "train": {"global_batch_size": 512, "epochs": 2, "baselines": [], "num_ranks": 1},
    }
    config = folder / "small.yaml"
    config.write_text(yaml.safe_dump(settings))
    loaded = load_config(str(config))
    generate = generate_settings(loaded)
    workers, dates = LocalWorkers(1, no_session), generated_dates(generate, FIRST_DAY)
    generate_days(workers, LakePaths(loaded.lake), generate, dates)
    run_retraining(config, RUN_DATE)
    return World(folder, config)
