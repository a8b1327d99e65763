"""NVTabular on CPU as a peer of the ETL benchmark. It is used as in NVIDIA's own script for Criteo's log.

The script converts the text to Parquet, then fits a workflow and applies it. Source: NVIDIA
DeepLearningExamples, PyTorch/Recommendation/DLRM/preproc/preproc_NVTabular.py (Apache-2.0; read, not copied).
We use the interface of the last release, 23.8. Its Categorify assigns the same reserved ids as our workflow:
1 for null, 2 for unknown or rare values, and from 3 on the vocabulary by descending count. The order of
values with equal counts is undefined, so the comparison of ids ignores this order.

NVTabular runs in a Python environment of its own (benchmarks/nvtabular_env.py), on a Dask cluster of one
process per core. Each process has one thread, because the work holds Python's global interpreter lock.
Parquet is written without compression, because NVTabular has no option for it.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.contender import (
    CATEGORICAL,
    COLUMNS,
    DENSE,
    LABEL,
    START_UP,
    WORK,
    Outcome,
    Task,
    Timing,
    parquet_files,
    run,
)

_BLOCK_BYTES = 64 * 2**20  # of text for each task that converts it to Parquet


def recipe(task: Task, timing: Timing) -> Outcome:
    with timing.part(START_UP):
        os.chdir(task.scratch)  # NVTabular writes its categories below the working folder
        import dask.dataframe
        import numpy as np
        import nvtabular
        from dask.distributed import Client, LocalCluster
        from merlin.io import Dataset

        cluster = LocalCluster(
            n_workers=task.threads,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            local_directory=task.scratch,
            memory_limit=0,
        )
        client = Client(cluster)
    with timing.part(WORK):
        with timing.part("text to parquet"):
            types = {LABEL: "float32", **dict.fromkeys(DENSE, "float64"), **dict.fromkeys(CATEGORICAL, "str")}
            for day in task.days:
                rows = dask.dataframe.read_csv(
                    day.file, sep="\t", header=None, names=list(COLUMNS), dtype=types, blocksize=_BLOCK_BYTES
                )
                rows.to_parquet(f"{task.scratch}/raw/{day.dt}", engine="pyarrow")
        categorical = list(CATEGORICAL) >> nvtabular.ops.Categorify(
            freq_threshold=task.min_count, out_path=f"{task.scratch}/categories", dtype=np.int32
        )
        dense = (
            list(DENSE)
            >> nvtabular.ops.FillMissing(0.0)
            >> nvtabular.ops.Clip(min_value=0.0)
            >> nvtabular.ops.LogOp()
        )
        workflow = nvtabular.Workflow(dense + categorical + [LABEL], client=client)
        with timing.part("fit"):
            train = [path for day in task.days if day.train for path in _raw(task, day.dt)]
            workflow.fit(Dataset(train, engine="parquet", cpu=True))
        with timing.part("apply"):
            for day in task.days:
                rows = Dataset(_raw(task, day.dt), engine="parquet", cpu=True)
                workflow.transform(rows).to_parquet(f"{task.out}/{day.dt}")
    client.close()
    cluster.close()
    return Outcome({day.dt: parquet_files(Path(task.out) / day.dt) for day in task.days})


def _raw(task: Task, dt: str) -> list[str]:
    return parquet_files(Path(task.scratch) / "raw" / dt)


if __name__ == "__main__":
    run(recipe)
