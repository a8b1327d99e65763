"""Times requests to Triton Inference Server with its own client. It runs in the server's environment.

    python triton_client.py URL ROWS.parquet INPUTS.npz PLAN.json

PLAN.json has `calls`, which maps a number of rows to a number of requests, `clients`, and `strings`, the raw columns
with strings. The last line of the output is a JSON object: for each model and number of rows, the milliseconds of each
request of one client, the rows per second of all clients at once, and the probabilities of the first rows.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tritonclient.http import InferenceServerClient, InferInput

Arrays = Mapping[str, Any]
DATA_TYPES = {"f": {4: "FP32", 8: "FP64"}, "i": {8: "INT64"}, "O": {8: "BYTES"}}


def main() -> None:
    url, rows, inputs, plan_file = sys.argv[1:]
    with open(plan_file, encoding="utf-8") as file:
        plan = json.load(file)
    data = {"ranker": dict(np.load(inputs)), "nightrank": raw_columns(rows, plan["strings"])}
    results = {
        model: {
            rows_per_call: measure(url, model, first_rows(arrays, int(rows_per_call)), calls, plan["clients"])
            for rows_per_call, calls in plan["calls"].items()
        }
        for model, arrays in data.items()
    }
    print(json.dumps(results))


def raw_columns(path: str, strings: list[str]) -> dict[str, Any]:
    """Returns raw columns as the ensemble reads them, (n, 1): strings, and float64 with NaN."""
    table = pq.read_table(path)
    columns = {}
    for name in table.column_names:
        values = table.column(name).to_pylist()
        if name in strings:
            texts = [(value or "").encode() for value in values]
            columns[name] = np.array(texts, dtype=object)[:, None]
        else:
            columns[name] = np.array([np.nan if value is None else value for value in values], dtype=float)[
                :, None
            ]
    return columns


def first_rows(arrays: Arrays, count: int) -> dict[str, Any]:
    return {name: np.ascontiguousarray(values[:count]) for name, values in arrays.items()}


def measure(url: str, model: str, arrays: Arrays, calls: int, clients: int) -> dict[str, Any]:
    """Times requests of one client, and of several at once. All requests have the same rows."""
    client = InferenceServerClient(url)
    for _ in range(5):
        result = ask(client, model, arrays)
    milliseconds = []
    for _ in range(calls):
        start = time.perf_counter()
        ask(client, model, arrays)
        milliseconds.append((time.perf_counter() - start) * 1000)
    client.close()
    rows = len(next(iter(arrays.values())))
    calls_each = calls // clients + 1
    seconds = together(url, model, arrays, calls_each, clients)
    return {
        "milliseconds": milliseconds,
        "rows_per_s": rows * calls_each * clients / seconds,
        "probabilities": result.ravel().tolist(),
    }


def together(url: str, model: str, arrays: Arrays, calls: int, clients: int) -> float:
    """Returns the seconds in which several clients make `calls` requests each, at the same time."""
    barrier = threading.Barrier(clients + 1)

    def work() -> None:
        client = InferenceServerClient(url)
        ask(client, model, arrays)
        barrier.wait()
        for _ in range(calls):
            ask(client, model, arrays)
        client.close()

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def ask(client: Any, model: str, arrays: Arrays) -> Any:
    inputs = []
    for name, values in arrays.items():
        data_type = DATA_TYPES[values.dtype.kind][values.dtype.itemsize]
        inputs.append(InferInput(name, list(values.shape), data_type))
        inputs[-1].set_data_from_numpy(values)
    return client.infer(model, inputs).as_numpy("probability")


if __name__ == "__main__":
    main()
