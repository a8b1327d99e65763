"""Measures requests to Triton Inference Server (`export_model --triton`), compared with torch in the process.

    .venv/bin/python benchmarks/serving.py [--quick]

A small DLRM with Criteo's columns is trained on rows of the generated log, and served on CPUs by the server of
nvidia-pytriton, whose ranker is ONNX Runtime in the Python backend. With 1, 64, 512 and 4,096 rows per request, the
script prints for the ranker (from features) and for the ensemble (from raw rows):

* the median, 95th and 99th percentile of the milliseconds of a request of one client, by Triton's HTTP client with
  binary tensors. The peers are calls in this process: torch for the ranker, `Model.score` for the ensemble;
* rows per second of four clients at once, compared with calls one after the other in this process.

`<model>_<rows>` is the median of the peer divided by that of the server, and `<model>_<rows>_throughput` is the rows
per second of the server divided by those of the peer. Server, clients and this process share the cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd
import torch

import nightrank
from benchmarks.quality import RUN_DATE, prepare
from benchmarks.report import machine, summary_line, table
from benchmarks.triton_server import environment, triton_server
from training.checkpoints import load_model

CALLS = {1: 1000, 64: 500, 512: 200, 4096: 50}
QUICK_SHARE, CLIENTS = 4, 4
TOLERANCE = 1e-5
NUMBERS, TEXTS = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
GROUPS: list[dict[str, Any]] = [
    {"columns": TEXTS, "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
    {"columns": NUMBERS, "kind": "dense", "ops": ["fill_median", {"clip": {"min": 0}}, "log1p", "normalize"]},
]
MODEL = {"architecture": "dlrm", "embedding_dim": 16, "bottom_mlp": [64, 16], "top_mlp": [64, 32]}
TRAIN = {"epochs": 1, "global_batch_size": 1024, "device": "cpu"}
Figures = dict[str, dict[int, dict[str, Any]]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK_SHARE} of the requests")
    options = parser.parse_args(arguments)
    calls = {rows: count // (QUICK_SHARE if options.quick else 1) for rows, count in CALLS.items()}
    rows = raw_rows(prepare(options.quick).root)
    model = trained(rows)
    with tempfile.TemporaryDirectory() as folder:
        peers = in_process(model, rows[: max(CALLS)], calls, Path(folder))
        ours = served(model, rows[: max(CALLS)], calls, Path(folder))
    require_equal(ours, peers)
    ratios = {}
    lines = []
    for name, of_model in ours.items():
        for count, figures in of_model.items():
            peer = peers[name][count]
            ratios[f"{name}_{count}"] = peer["p50"] / figures["p50"]
            ratios[f"{name}_{count}_throughput"] = figures["rows_per_s"] / peer["rows_per_s"]
            for who, its in (("server", figures), ("in process", peer)):
                shown = [f"{its[key]:.2f}" for key in ("p50", "p95", "p99")]
                lines.append([name, f"{count:,}", who, *shown, f"{its['rows_per_s']:,.0f}"])
    print(table(["model", "rows", "computed by", "p50 ms", "p95 ms", "p99 ms", "rows/s"], lines))
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.3f} times as fast as in the process")
    packages = ("torch", "onnxruntime", "pyarrow")
    print(
        summary_line(
            "serving",
            machine(2, packages),
            without_arrays(ours),
            without_arrays(peers),
            ratios,
            quick=options.quick,
        )
    )
    return 0


def raw_rows(lake: str) -> pd.DataFrame:
    """Returns the valid rows of the log of the run date: label, numbers with NaN for nulls, strings."""
    (file, *_) = sorted(Path(lake, f"raw/dt={RUN_DATE}").glob("*.tsv*"))
    names = ["label", *NUMBERS, *TEXTS]
    types: Any = dict.fromkeys(TEXTS, str)
    rows = pd.read_csv(file, sep="\t", names=names, dtype=types, on_bad_lines="skip", low_memory=False)
    rows[["label", *NUMBERS]] = rows[["label", *NUMBERS]].apply(pd.to_numeric, errors="coerce")
    whole = rows[NUMBERS].isna() | (rows[NUMBERS] % 1 == 0)
    return rows[rows["label"].isin([0, 1]) & whole.all(axis=1)].reset_index(drop=True)


def trained(rows: pd.DataFrame) -> nightrank.Model:
    print(f"serving: training on {len(rows):,} rows …", file=sys.stderr, flush=True)
    types = {**dict.fromkeys(NUMBERS, "int"), **dict.fromkeys(TEXTS, "string")}
    workflow = nightrank.Workflow(GROUPS, types=types).fit(rows)  # type: ignore[arg-type]
    return nightrank.train(workflow, rows, model=MODEL, train=TRAIN)


def in_process(model: nightrank.Model, rows: pd.DataFrame, calls: Mapping[int, int], folder: Path) -> Figures:
    """Times torch from features, and `Model.score` from raw rows. Both use all cores."""
    model.save(folder / "model")
    (path,) = (folder / "model").glob("models/*/*/model.json")
    network = load_model(str(path.parent), torch.device("cpu"), kernels="torch").model.eval()
    inputs = {name: torch.from_numpy(values) for name, values in model.inputs(rows).items()}

    @torch.inference_mode()
    def rank(count: int) -> Any:
        return torch.sigmoid(network(inputs["dense"][:count], inputs["categorical"][:count])).numpy()

    def score(count: int) -> Any:
        return model.score(rows[:count]).to_numpy()

    contenders = {"ranker": rank, "nightrank": score}
    return {name: {n: timed(call, n, calls[n]) for n in calls} for name, call in contenders.items()}


def timed(call: Callable[[int], Any], rows: int, calls: int) -> dict[str, Any]:
    for _ in range(5):
        result = call(rows)
    milliseconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call(rows)
        milliseconds.append((time.perf_counter() - start) * 1000)
    return {**percentiles(milliseconds), "rows_per_s": 1000 * rows / np.mean(milliseconds), "array": result}


def served(model: nightrank.Model, rows: pd.DataFrame, calls: Mapping[int, int], folder: Path) -> Figures:
    """Times requests of Triton's client to a server on loopback."""
    model.export_triton(folder / "repository", "python")
    rows[[*NUMBERS, *TEXTS]].to_parquet(folder / "rows.parquet")
    np.savez(folder / "inputs.npz", **model.inputs(rows))
    (folder / "plan.json").write_text(json.dumps({"calls": calls, "clients": CLIENTS, "strings": TEXTS}))
    files = [folder / name for name in ("rows.parquet", "inputs.npz", "plan.json")]
    client = [environment() / "bin/python", Path(__file__).with_name("triton_client.py")]
    with triton_server(folder / "repository") as url:
        command = [*map(str, client), url.removeprefix("http://"), *map(str, files)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    results = json.loads(done.stdout.splitlines()[-1])
    return {
        name: {
            int(count): {
                **percentiles(of_count["milliseconds"]),
                "rows_per_s": of_count["rows_per_s"],
                "array": np.array(of_count["probabilities"]),
            }
            for count, of_count in of_model.items()
        }
        for name, of_model in results.items()
    }


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    return {f"p{share}": float(np.percentile(milliseconds, share)) for share in (50, 95, 99)}


def require_equal(ours: Figures, peers: Figures) -> None:
    """Raises RuntimeError if the server computes other probabilities than the model in this process."""
    for name, of_model in ours.items():
        for count, figures in of_model.items():
            difference = float(np.abs(figures["array"] - peers[name][count]["array"]).max())
            if difference > TOLERANCE:
                raise RuntimeError(f"{name} with {count} rows differs by {difference:.2g} from the model")


def without_arrays(figures: Figures) -> dict[str, Any]:
    return {
        name: {str(n): {k: v for k, v in its.items() if k != "array"} for n, its in of_model.items()}
        for name, of_model in figures.items()
    }


if __name__ == "__main__":
    sys.exit(main())
