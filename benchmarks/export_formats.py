"""Measures how exported models with fewer bits, and compiled ones, differ from ONNX in float32.

    .venv/bin/python benchmarks/export_formats.py [--quick] [--models NAME …]

The log and the training settings are those of benchmarks/quality.py. Each model is trained once and exported to ONNX in
float32, fp16 and int8 (`export_model --formats`), and compiled by AOTInductor in float32 (`--compiled`). ONNX
Runtime and torch run the programs on one core, and the script prints for each format:

* the change of the AUC on the test day, which may be at most 2e-4, the limit of benchmarks/precision.py; and the
  mean change of a probability;
* the share of a user's ten best items, of all items of the test day, that are also among the ten best in float32;
* the size of the file, and rows per second in batches of 4,096 rows, compared with float32. The formats take
  turns for five rounds, and the fastest round of each counts.

`auc_<model>_<format>` is the limit divided by the change. `speed_<model>_<format>` and `size_<model>_<format>`
say how many times as fast and how many times smaller than float32 a program is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnxruntime
import torch

from benchmarks.quality import CONFIG, PRESETS, RUN_DATE, prepare
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from metrics import auc
from storage.dataset import read_dataset
from storage.feature_spec import FeatureSpec
from storage.paths import LakePaths
from training.checkpoints import load_model
from training.checkpoints.model import LoadedModel
from training.data.loader import Loader
from training.data.sharding import plan_shards, row_groups
from training.export.write_export import (
    COMPILED,
    ExportedModel,
    Format,
    Ranker,
    forms_of,
    load_compiled,
    write_export,
)
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan, make_plan
from training.models.inputs import id_columns

CPU = torch.device("cpu")
FORMATS: tuple[Format, ...] = ("fp16", "int8")
LIMIT = 2e-4
BATCH_ROWS, USERS, TOP, ROUNDS = 4_096, 200, 10, 5
Inputs = dict[str, np.ndarray[Any, Any]]
Program = Callable[[Inputs], np.ndarray[Any, Any]]  # inputs of a batch → probabilities


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="15,000 rows per day instead of 60,000")
    parser.add_argument(
        "--models", nargs="+", default=list(PRESETS), choices=list(PRESETS), help="default: all"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lake = prepare(options.quick)
    results = {name: measure(lake, name) for name in options.models}
    rows, ratios = [], {}
    for name, of_model in results.items():
        for kind, figures in of_model.items():
            rows.append([name, kind, *(f"{figures[key]:.3g}" for key in COLUMNS)])
            if kind == "fp32":
                continue
            change = max(abs(figures["auc_change"]), 1e-12)
            ratios[f"auc_{name}_{kind}"] = LIMIT / change
            ratios[f"speed_{name}_{kind}"] = figures["rows_per_s"] / of_model["fp32"]["rows_per_s"]
            ratios[f"size_{name}_{kind}"] = of_model["fp32"]["bytes"] / figures["bytes"]
            print(f"auc_{name}_{kind}: {'met' if change <= LIMIT else 'MISSED'}")
    print(table(["model", "format", *COLUMNS.values()], rows))
    packages = ("torch", "onnxruntime")
    print(summary_line("export_formats", machine(1, packages), results, {}, ratios, quick=options.quick))
    return 0


COLUMNS = {
    "auc_change": "change of the AUC",
    "probability_change": "mean change of a probability",
    "equal_items": "equal items in lists of 10",
    "bytes": "bytes",
    "rows_per_s": "rows/s",
}


def measure(lake: LakePaths, name: str) -> dict[str, dict[str, float]]:
    """Trains a model, exports it, and returns the figures of each format. The keys are those of COLUMNS."""
    preset = PRESETS[name]
    settings = [f"lake={lake.root}", preset.model, "train.num_ranks=1", "train.baselines=[]", *preset.train]
    plan = make_plan(load_config(str(CONFIG), settings), lake, read_dataset(lake, RUN_DATE))
    train_in_process(plan)
    loaded = load_model(plan.model_path, CPU, kernels="torch")
    labels, rows = test_rows(plan, loaded)
    pairs, users = pairs_of(loaded.spec, loaded, rows)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "exported"
        exported = ExportedModel(loaded.model.eval(), loaded.spec, loaded.multi_hot, loaded.version)
        write_export(exported, str(folder), FORMATS, compiled=True)
        paths = {"fp32": folder / "ranker.onnx"}
        paths |= {kind: folder / f"ranker.{kind}.onnx" for kind in FORMATS}
        programs = {kind: onnx_program(path) for kind, path in paths.items()}
        paths["compiled"] = folder / f"ranker.{COMPILED}"
        programs["compiled"] = compiled_program(paths["compiled"], forms_of(exported.model, exported.widths))
        sizes = {kind: path.stat().st_size for kind, path in paths.items()}
    rounds = [{kind: run(program, rows) for kind, program in programs.items()} for _ in range(ROUNDS)]
    scored = {kind: (rounds[0][kind][0], max(of_kind[kind][1] for of_kind in rounds)) for kind in programs}
    best = {kind: best_items(run(program, pairs)[0], users) for kind, program in programs.items()}
    full = scored["fp32"][0]
    figures = {}
    for kind, (probabilities, speed) in scored.items():
        figures[kind] = {
            "auc": float(auc(labels, torch.from_numpy(probabilities))),
            "auc_change": float(
                auc(labels, torch.from_numpy(probabilities)) - auc(labels, torch.from_numpy(full))
            ),
            "probability_change": float(np.abs(probabilities - full).mean()),
            "equal_items": float(
                np.mean(
                    [
                        len({*mine} & {*other}) / TOP
                        for mine, other in zip(best[kind], best["fp32"], strict=True)
                    ]
                )
            ),
            "bytes": sizes[kind],
            "rows_per_s": round(speed),
        }
        print(f"export_formats: {name}, {kind}: AUC {figures[kind]['auc']:.5f}", file=sys.stderr, flush=True)
    return figures


def test_rows(plan: TrainPlan, loaded: LoadedModel) -> tuple[torch.Tensor, Inputs]:
    """Returns the labels (B,) and the inputs of the rows of the test day."""
    files = plan.splits["test"]
    shards = plan_shards([group.rows for group in row_groups(files)], 1, BATCH_ROWS)
    parts = []
    for batch in Loader(files, shards, [0], plan.spec, None, loaded.multi_hot).batches():
        real = batch.weights > 0
        parts.append((batch.labels[real], batch.dense[real], batch.categorical[real]))
    labels, dense, categorical = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return labels, {"dense": dense.float().numpy(), "categorical": categorical.long().numpy()}


def pairs_of(spec: FeatureSpec, loaded: LoadedModel, rows: Inputs) -> tuple[Inputs, int]:
    """Returns inputs of up to USERS users with all items, user by user, and the number of users.

    Columns of items come from the first row of each item, and all others from the first row of the user.
    """
    of_ids = {
        feature.name: range(span.start, span.stop) for feature, span in id_columns(spec, loaded.multi_hot)
    }
    columns = {
        scope: {
            "dense": [place for place, feature in enumerate(spec.dense) if feature.scope == scope],
            "categorical": [it for f in spec.embedded if f.scope == scope for it in of_ids[f.name]],
        }
        for scope in ("user", "item")
    }
    first = {
        scope: np.sort(
            np.unique(
                np.hstack([rows[name][:, places] for name, places in by_input.items()]),
                axis=0,
                return_index=True,
            )[1]
        )
        for scope, by_input in columns.items()
    }
    users, items = first["user"][:USERS], first["item"]
    pairs = {}
    for name, values in rows.items():
        pairs[name] = np.repeat(values[users], len(items), axis=0)
        places = columns["item"][name]
        pairs[name][:, places] = np.tile(values[items][:, places], (len(users), 1))
    return pairs, len(users)


def best_items(probabilities: np.ndarray[Any, Any], users: int) -> np.ndarray[Any, Any]:
    """Returns the positions of the TOP best items of each user, shape (users, TOP)."""
    by_user = probabilities.reshape(users, -1)
    return np.argsort(-by_user, axis=1, kind="stable")[:, :TOP]


def onnx_program(path: Path) -> Program:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [inputs.name for inputs in session.get_inputs()]
    return lambda batch: session.run(None, {name: batch[name] for name in names})[0]


def compiled_program(path: Path, forms: Mapping[str, Ranker]) -> Program:
    program, names = load_compiled(path), forms["ranker"].inputs

    def probabilities(batch: Inputs) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            result: np.ndarray[Any, Any] = program(*(torch.from_numpy(batch[name]) for name in names)).numpy()
        return result

    return probabilities


def run(program: Program, rows: Inputs) -> tuple[np.ndarray[Any, Any], float]:
    """Returns the probability of each row, and rows per second. The first batch is run once before."""
    number = len(rows["dense"])
    batches = [
        {name: values[first : first + BATCH_ROWS] for name, values in rows.items()}
        for first in range(0, number, BATCH_ROWS)
    ]
    program(batches[0])
    began = time.perf_counter()
    results = [program(batch) for batch in batches]
    return np.concatenate(results), number / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
