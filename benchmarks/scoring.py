"""Compares the ways to score pairs of users and items in Spark: our jobs and three forms of Python functions.

    .venv/bin/python benchmarks/scoring.py [--quick] [--users N] [--candidates N] [--turns N] [--only NAME …]
        [--scaling]

Our function score_lists scores the candidates of each user and returns the k best items. The peers score
joined rows, which contain the features of a user and of an item. The joined rows were made beforehand, and the
peers do not rank items. Our time includes reading, joining, scoring and ranking.

Contenders take turns in one Spark session on local[2]. The figure is the number of pairs per second, the
median over turns. Each contender reads Parquet from the file cache and writes to Spark's sink `noop`, which
discards rows. The model is a DLRM of dimension 128 with the top MLP 512-256. It has 26 columns of ids (half
of them of the user, half of the item) and 13 dense features of the user.

Each ratio is the speed of our code divided by the speed of the other contender:

* `joined_fp32`: score_lists in fp32, compared with the fastest of pandas_udf, predict_batch_udf and
  mapInPandas in fp32. For `joined_bf16`, score_lists and the others use bf16. For `bf16_over_joined_fp32`,
  score_lists uses bf16 and the others use fp32.
* `published_fp32`, `published_bf16`: score_lists compared with mapInPandas, for a DLRM with the published top
  MLP, 1024-1024-512-256.
* `null_model`: score_lists compared with the fastest of the three, for a model that returns 0. This ratio
  measures only the transport of rows. The number of users is twice as large (with --quick: ten times).
* `bare_model`: the job score_rows, which reads and writes files, compared with the model without a Spark job
  on rows in memory (benchmarks/bare_model.py).
* `topk_window_1m`, `topk_window_8m`: score_lists with a model that computes a hash of ids, compared with
  row_number over a window on pairs that already have scores.

Results are compared before times are measured. Probabilities must agree within 1e-5 (in bf16 and int8: within
0.02). Lists must be equal, except that items whose scores are that close may be swapped. With `--scaling`,
the script measures time and memory at other numbers of users and candidates instead
(benchmarks/scoring_scaling.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a file in this folder hides our package scoring

from benchmarks.architectures import make_known
from benchmarks.report import machine, summary_line, table
from benchmarks.scoring_bench import GROUPS, PRECISIONS, Bench, Speeds
from benchmarks.scoring_contenders import JOINED, Unequal

TARGETS = {
    "joined_fp32": 2.0,
    "joined_bf16": 1.5,
    "bf16_over_joined_fp32": 4.0,
    "null_model": 5.0,
    "bare_model": 0.97,
    "topk_window_1m": 1.0,
    "topk_window_8m": 1.5,
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the users, one turn")
    parser.add_argument("--users", type=int, help="users with candidates (default 2,000; quick: 200)")
    parser.add_argument(
        "--candidates", type=int, default=500, help="candidate items of each user (default 500)"
    )
    parser.add_argument("--items", type=int, default=2_000, help="number of items (default 2,000)")
    parser.add_argument("--most-rows", type=int, help="most ids of a column (default 50,000; quick: 5,000)")
    parser.add_argument("--turns", type=int, help="runs of every contender (default 3; quick: 1)")
    parser.add_argument("--cores", type=int, default=2, help="cores of every contender (default 2)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=GROUPS,
        default=list(GROUPS),
        help="groups of contenders to run (default: all)",
    )
    parser.add_argument(
        "--scaling", action="store_true", help="measure how time and memory grow with users and candidates"
    )
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
    ours = {name: figures for name, figures in speeds.items() if name.startswith("ours")}
    peers = {name: figures for name, figures in speeds.items() if name not in ours}
    sizes = {"users": options.users, "candidates": options.candidates, "most_rows": options.most_rows}
    print(summary_line("scoring", of_machine, ours, peers, ratios, targets=TARGETS, **sizes))
    return 0


def ratios_of(speeds: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Returns the ratios that the module's docstring describes. A ratio without both figures is None."""

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
    """Returns a line about one ratio and its target."""
    if ratio is None:
        return f"{name}: not measured"
    target = TARGETS.get(name)
    if target is None:
        return f"{name}: {ratio:.3f}"
    wins = "" if ratio >= 1 or name == "bare_model" else f" (the peer is {1 / ratio:.2f} times as fast)"
    return f"{name}: {ratio:.3f}{wins}, target {target}: {'met' if ratio >= target else 'MISSED'}"


def _print(speeds: Speeds, ratios: Mapping[str, float | None]) -> None:
    keys = ("pairs_per_s", "lowest", "highest")
    rows = [[name, *(f"{figures[key]:,.0f}" for key in keys)] for name, figures in speeds.items()]
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
