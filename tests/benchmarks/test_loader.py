"""The loader's benchmark: its table, what holds contenders to it, and the whole of it on a small table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks import loader
from benchmarks.contender import CATEGORICAL, DENSE, LABEL
from benchmarks.etl_runs import ROOT
from benchmarks.loader_contender import LoaderTask, check
from benchmarks.loader_data import FeatureTable, make_table, spec

pytestmark = pytest.mark.processes

ROWS = 2_000


@pytest.fixture(scope="module")
def feature_table(tmp_path_factory: pytest.TempPathFactory) -> FeatureTable:
    return make_table(tmp_path_factory.mktemp("cache"), ROWS)


def test_the_parquet_files_and_the_binary_file_hold_the_same_rows(feature_table: FeatureTable) -> None:
    rows = pq.read_table(list(feature_table.files)).to_pandas()
    assert np.array_equal(rows[LABEL], np.load(feature_table.labels))
    assert np.array_equal(rows[list(DENSE)], np.load(feature_table.dense))
    ids = np.load(feature_table.ids)
    assert np.array_equal(rows[list(CATEGORICAL)], ids)
    assert ids.dtype == np.int32
    assert (ids.max(axis=0) < [feature.cardinality for feature in spec().categorical]).all()
    assert (feature_table.id_sum, feature_table.label_sum) == (ids.sum(dtype=np.int64), rows[LABEL].sum())
    assert pq.ParquetFile(feature_table.files[0]).metadata.num_row_groups == 1


def task_of(contender: loader.Contender, feature_table: FeatureTable) -> LoaderTask:
    return LoaderTask(contender.module, feature_table, 64, 512, 1, 1, "", contender.settings)


def every(names: Any) -> list[loader.Contender]:
    return [contender for name in names for contender in loader.PEERS[name]]


# Petastorm's thread pool loses the rows of small files at times: the benchmark then counts it as failed.
STEADY = [contender for contender in every(loader.PEERS) if contender.settings.get("pool") != "thread"]


@pytest.mark.parametrize("contender", [loader.OURS, *STEADY], ids=str)
def test_a_contenders_epoch_holds_every_row(contender: loader.Contender, feature_table: FeatureTable) -> None:
    module = __import__(contender.module, fromlist=["epoch"])
    check(module.epoch(feature_table, task_of(contender, feature_table), seed=1), feature_table)


@pytest.mark.parametrize("contender", [loader.OURS, *STEADY[:2]], ids=str)
def test_shuffled_epochs_differ(contender: loader.Contender, feature_table: FeatureTable) -> None:
    module = __import__(contender.module, fromlist=["epoch"])
    task = task_of(contender, feature_table)
    orders = []
    for seed in (1, 2):
        epoch = module.epoch(feature_table, task, seed)
        orders.append(
            torch.cat(
                [ids[0].reshape(len(ids[0]), -1)[:, 0] if len(ids) == 1 else ids[0] for _, ids in epoch]
            )
        )
    assert not torch.equal(*orders)


@pytest.mark.parametrize("ids", [[], [1]])
def test_an_epoch_that_lost_or_changed_rows_is_noticed(feature_table: FeatureTable, ids: list[int]) -> None:
    with pytest.raises(ValueError, match="an epoch gave"):
        check(iter([(torch.ones(len(ids)), [torch.tensor(ids)])]), feature_table)


@pytest.mark.large
def test_the_benchmark_ends_in_one_json_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/loader.py"), "--rows", str(ROWS), "--rounds", "1"]
    command += ["--epochs", "1", "--batch", "64", "--buffer", "512", "--only", "memmap_row_shuffle", "memcpy"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["benchmark"] == "loader"
    assert summary["ours"]["rows_per_s"] > 0
    assert summary["ratios"]["memmap_row_shuffle"] > 0
    assert summary["ratios"]["per_row"] is None
    assert "per_row: not measured (left out by --only)" in done.stdout
    assert set(summary["targets"]) <= set(summary["ratios"])


@pytest.mark.parametrize(
    "ratio, words",
    [(4.5, ["4.50 times faster", "met"]), (2.0, ["MISSED"]), (0.5, ["wins", "2.00 times slower", "MISSED"])],
)
def test_the_verdict_says_who_wins(ratio: float, words: list[str]) -> None:
    message = loader.verdict("petastorm_batched", ratio, 4.0, {})
    assert all(word in message for word in words)


@pytest.mark.large
def test_the_interference_of_each_loader_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/loader_interference.py")]
    command += ["--rows", "2000", "--seconds", "0.2", "--batch", "64"]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout.splitlines()[-1])
    measured = {**summary["ours"], **summary["peers"]}
    assert measured.keys() == {"ours", "petastorm_batched", "petastorm_best"}
    assert summary["ratios"].keys() == measured.keys() - {"ours"}
    for figures in measured.values():
        assert figures["beside_ms"] > 0 < figures["alone_ms"]
        assert figures["rows_per_s"] > 64
