"""Pairs a second of score_lists against joined rows through what Spark offers, of score_rows against the bare model, and top k.

    .venv/bin/python benchmarks/scoring.py [--quick] [--users N] [--candidates N] [--turns N] [--only NAME …] [--scaling]

One Spark session, local[2]; contenders take turns; the median over turns counts. Each reads Parquet that lies in the file cache, and
its result goes nowhere (Spark's `noop` sink). The peers' rows were joined before, and they rank nothing: what they leave out is
in our time. The model: DLRM of dimension 128, top MLP 512-256, 26 columns of ids, half on each side, 13 dense features of the
user. Ratios, ours over the other's:

* `joined_fp32`: over the best of pandas_udf, predict_batch_udf and mapInPandas, all in fp32; `joined_bf16`: both in bf16;
  `bf16_over_joined_fp32`: our bf16 over it.
* `published_fp32`, `published_bf16`: the published top MLP, 1024-1024-512-256, against mapInPandas.
* `null_model`: a model that returns 0, which leaves the transport; on ten times the users.
* `bare_model`: score_rows, files read and written, over the model alone on rows in memory (benchmarks/bare_model.py).
* `topk_window_1m`, `topk_window_8m`: score_lists with a model that hashes ids over row_number on pairs with scores.

Before a time counts results are compared: probabilities within 1e-5 (bf16: 0.02), lists equal but for items that close. `--scaling`
prints cost and memory at other numbers of users and candidates instead (benchmarks/scoring_scaling.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a file here has the name of our package scoring

import pyarrow.parquet as pq

from benchmarks.architectures import make_known
from benchmarks.bare_model import rows_per_s
from benchmarks.harness import settle
from benchmarks.report import closing_line, machine, table
from benchmarks.scoring_contenders import (
    CLOSE,
    JOINED,
    Contender,
    Rows,
    Unequal,
    joined,
    lists,
    open_session,
    request_of,
    require_equal_lists,
    require_equal_rows,
)
from benchmarks.scoring_world import Data, make_data, make_items, make_model, make_spec
from setup.console import cache_folder

CACHE = cache_folder() / "benchmarks/scoring"
PRECISIONS = ("fp32", "bf16")
GROUPS = (*PRECISIONS, "published", "null", "rows", "topk")
TARGETS = {
    "joined_fp32": 2.0,
    "joined_bf16": 1.5,
    "bf16_over_joined_fp32": 4.0,
    "null_model": 5.0,
    "bare_model": 0.97,
    "topk_window_1m": 1.0,
    "topk_window_8m": 1.5,
}
Runs = Mapping[str, Contender | Rows]
Speeds = dict[str, dict[str, float]]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the users, one turn")
    parser.add_argument("--users", type=int, help="users with candidates (default 2,000; quick: 200)")
    parser.add_argument(
        "--candidates", type=int, default=500, help="items each is scored against (default 500)"
    )
    parser.add_argument("--items", type=int, default=2_000, help="items there are (default 2,000)")
    parser.add_argument("--most-rows", type=int, help="cap on a column's ids (default 50,000; quick: 5,000)")
    parser.add_argument("--turns", type=int, help="of every contender (default 3; quick: 1)")
    parser.add_argument("--cores", type=int, default=2, help="cores of every contender (default 2)")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), help="what to measure")
    parser.add_argument("--scaling", action="store_true", help="cost and memory by users and candidates")
    options = parser.parse_args(arguments)
    options.users = options.users or (200 if options.quick else 2_000)
    options.most_rows = options.most_rows or (5_000 if options.quick else 50_000)
    options.turns = options.turns or (1 if options.quick else 3)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if options.scaling:
        from benchmarks.scoring_scaling import scaling

        return scaling(options)
    of_machine = machine(options.cores, ("torch", "pyspark", "pyarrow"))
    make_known()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options, scratch)
        try:
            speeds = bench.measure()
        finally:
            bench.spark.stop()
    ratios = ratios_of(speeds)
    _print(speeds, ratios)
    ours = {name: each for name, each in speeds.items() if name.startswith("ours")}
    peers = {name: each for name, each in speeds.items() if name not in ours}
    sizes = {"users": options.users, "candidates": options.candidates, "most_rows": options.most_rows}
    print(closing_line("scoring", of_machine, ours, peers, ratios, targets=TARGETS, **sizes))
    return 0


class Bench:
    """The session, the data and the models of one run."""

    def __init__(self, options: argparse.Namespace, scratch: str) -> None:
        self.options = options
        self.spec = make_spec(options.most_rows)
        self.items = make_items(CACHE, self.spec, options.items)
        self.small = self._data(8, options.candidates, joined=True)
        self.spark = open_session(options.cores, scratch)

    def _data(self, users: int, candidates: int, *, joined: bool) -> Data:
        return make_data(
            CACHE / str(self.options.most_rows), self.spec, self.items, users, candidates, joined=joined
        )

    def _model(self, name: str) -> str:
        return make_model(CACHE, name, self.spec)

    def measure(self) -> Speeds:
        """Contender → pairs a second."""
        only, speeds = self.options.only, Speeds()
        data = self._data(self.options.users, self.options.candidates, joined=True)
        settle([*data.users, *data.joined_files])
        for precision in PRECISIONS:
            if precision in only:
                runs = self._lists_and_joined("dlrm", precision, tuple(JOINED))
                if precision == "fp32":
                    int8 = request_of(self._model("dlrm"), embeddings="int8")
                    assert int8 is not None
                    runs["ours_int8"] = lists(self.spark, self.spec, self.items, int8)
                speeds |= self._alternate(runs, data)
            if "published" in only:
                runs = self._lists_and_joined("published", precision, ("map_in_pandas",))
                speeds |= self._alternate({f"{name}_published": each for name, each in runs.items()}, data)
        if "rows" in only:
            speeds |= self._rows(data)
        if "null" in only:
            speeds |= self._null()
        if "topk" in only:
            speeds |= self._top(data)
        return speeds

    def _lists_and_joined(self, model: str, precision: str, names: Sequence[str]) -> dict[str, Any]:
        """Ours and peers, held equal on a few users."""
        path, spec = self._model(model), self.spec
        runs: dict[str, Any] = {
            f"{name}_{precision}": joined(self.spark, spec, name, path, precision) for name in names
        }
        found = {name: each.frame(self.small).toPandas() for name, each in runs.items()}
        first = next(iter(found.values()))
        for name, each in found.items():
            require_equal_rows(name, each, first, CLOSE[precision])
        request = request_of(path, precision)
        if request is not None:
            ours = lists(self.spark, spec, self.items, request)
            keys = pq.read_table(self.items, columns=["item_index", "item_key"]).to_pandas()
            pairs = first.merge(keys, on="item_index").rename(columns={"item_key": "item_id"})
            require_equal_lists("ours", ours.frame(self.small).toPandas(), pairs, CLOSE[precision])
            runs[f"ours_{precision}"] = ours
        return runs

    def _rows(self, data: Data) -> Speeds:
        request = request_of(self._model("dlrm"))
        assert request is not None
        runs = {"ours_rows": Rows(self.spark, request)}
        peer = (
            joined(self.spark, self.spec, "map_in_pandas", request.path, "fp32").frame(self.small).toPandas()
        )
        keys = self.spark.read.parquet(*self.small.joined_files).select("row_id", "user_key", "item_index")
        scored = runs["ours_rows"].scored(self.small).merge(keys.toPandas(), on="row_id")
        require_equal_rows("ours_rows", scored, peer, CLOSE["fp32"])
        found = self._alternate(runs, data)
        print("scoring: bare_model …", file=sys.stderr, flush=True)
        bare = rows_per_s(request, data.joined, self.options.cores, max(self.options.turns, 2))
        return found | {"bare_model": spread(bare)}

    def _null(self) -> Speeds:
        """On ten times the users: what a job costs whatever its rows would otherwise be all there is to see."""
        data = self._data(10 * self.options.users, self.options.candidates, joined=True)
        settle([*data.users, *data.joined_files])
        runs = self._lists_and_joined("null", "fp32", tuple(JOINED))
        request = request_of(self._model("null"))
        assert request is not None
        runs["ours_rows"] = Rows(self.spark, request)
        return self._alternate({f"{name}_null": each for name, each in runs.items()}, data)

    def _top(self, data: Data) -> Speeds:
        from benchmarks.scoring_topk import pair_files, scored_pairs, window

        request = request_of(self._model("hash"))
        assert request is not None
        ours, theirs = (
            lists(self.spark, self.spec, self.items, request),
            window(self.spark, self.spec, self.items),
        )
        pairs = scored_pairs(self.small, self.spec, self.items)
        require_equal_lists("ours", ours.frame(self.small).toPandas(), pairs, 0.0)
        require_equal_lists("row_number", theirs.frame(self.small).toPandas(), pairs, 0.0)
        found: Speeds = {}
        for name, factor in (("1m", 1), ("8m", 8)):
            if factor == 1 or not self.options.quick:
                sized = self._data(
                    factor * 1_000_000 // self.options.candidates, self.options.candidates, joined=False
                )
                settle([*sized.users, *pair_files(sized, self.spec, self.items)])
                runs = {f"ours_top_{name}": ours, f"row_number_{name}": theirs}
                found |= self._alternate(runs, sized)
        return found

    def _alternate(self, runs: Runs, data: Data) -> Speeds:
        """Turn by turn; before each, the contender runs on a few users, which loads its model."""
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        names = list(runs)
        for turn in range(self.options.turns):
            first = turn % len(names)
            for name in [*names[first:], *names[:first]]:
                print(f"scoring: {name} …", file=sys.stderr, flush=True)
                runs[name].run(self.small)
                began = time.perf_counter()
                runs[name].run(data)
                speeds[name].append(data.pairs / (time.perf_counter() - began))
        return {name: spread(each) for name, each in speeds.items()}


def spread(speeds: Sequence[float]) -> dict[str, float]:
    return {
        "pairs_per_s": round(statistics.median(speeds)),
        "lowest": round(min(speeds)),
        "highest": round(max(speeds)),
    }


def ratios_of(speeds: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """As the module says; null where a contender did not run."""

    def best(*names: str) -> float | None:
        return max((speeds[name]["pairs_per_s"] for name in names if name in speeds), default=None)

    def ratio(ours: str, *others: str) -> float | None:
        mine, other = best(ours), best(*others)
        return mine / other if mine is not None and other else None

    fp32, bf16 = ([f"{name}_{precision}" for name in JOINED] for precision in PRECISIONS)
    return {
        "joined_fp32": ratio("ours_fp32", *fp32),
        "joined_bf16": ratio("ours_bf16", *bf16),
        "bf16_over_joined_fp32": ratio("ours_bf16", *fp32),
        "published_fp32": ratio("ours_fp32_published", "map_in_pandas_fp32_published"),
        "published_bf16": ratio("ours_bf16_published", "map_in_pandas_bf16_published"),
        "null_model": ratio("ours_fp32_null", *(f"{name}_null" for name in fp32)),
        "bare_model": ratio("ours_rows", "bare_model"),
        "topk_window_1m": ratio("ours_top_1m", "row_number_1m"),
        "topk_window_8m": ratio("ours_top_8m", "row_number_8m"),
    }


def verdict(name: str, ratio: float | None) -> str:
    """One line for people."""
    if ratio is None:
        return f"{name}: not measured"
    target = TARGETS.get(name)
    if target is None:
        return f"{name}: {ratio:.3f}"
    wins = "" if ratio >= 1 or name == "bare_model" else f" (it wins, by {1 / ratio:.2f})"
    return f"{name}: {ratio:.3f}{wins}, target {target}: {'met' if ratio >= target else 'MISSED'}"


def _print(speeds: Speeds, ratios: Mapping[str, float | None]) -> None:
    keys = ("pairs_per_s", "lowest", "highest")
    rows = [[name, *(f"{each[key]:,.0f}" for key in keys)] for name, each in speeds.items()]
    print(table(["contender", "pairs/s", "lowest", "highest"], rows))
    print()
    for name, ratio in ratios.items():
        print(verdict(name, ratio))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unequal as error:
        print(f"scoring: {error}", file=sys.stderr)
        sys.exit(1)
