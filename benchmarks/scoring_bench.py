"""Runs the scoring benchmark once: opens the session, makes the data and the models, runs the contenders."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from benchmarks.bare_model import rows_per_s
from benchmarks.harness import settle
from benchmarks.scoring_contenders import (
    CLOSE,
    JOINED,
    Contender,
    Rows,
    joined,
    lists,
    open_session,
    request_of,
    require_equal_lists,
    require_equal_rows,
)
from benchmarks.scoring_topk import pair_files, scored_pairs, window
from benchmarks.scoring_world import Data, make_data, make_items, make_model, make_spec
from setup.console import cache_folder

CACHE = cache_folder() / "benchmarks/scoring"
PRECISIONS = ("fp32", "bf16")
GROUPS = (*PRECISIONS, "published", "null", "rows", "topk")
Runs = Mapping[str, Contender | Rows]
Speeds = dict[str, dict[str, float]]


class Bench:
    """The Spark session, the data and the models of one run of the benchmark."""

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
        """Returns a dict that maps each contender to its pairs per second (median, lowest and highest)."""
        only, speeds = self.options.only, Speeds()
        data = self._data(self.options.users, self.options.candidates, joined=True)
        settle([*data.users, *data.joined_files])
        for precision in PRECISIONS:
            if precision in only:
                runs = self._lists_and_joined("dlrm", precision, tuple(JOINED))
                speeds |= self._alternate(runs, data)
            if "published" in only:
                runs = self._lists_and_joined("published", precision, ("map_in_pandas",))
                speeds |= self._alternate(
                    {f"{name}_published": contender for name, contender in runs.items()}, data
                )
        if "rows" in only:
            speeds |= self._rows(data)
        if "null" in only:
            speeds |= self._null()
        if "topk" in only:
            speeds |= self._top(data)
        return speeds

    def _lists_and_joined(self, model: str, precision: str, names: Sequence[str]) -> dict[str, Any]:
        """Returns our contenders and the peers for one model and precision.

        Before it returns, the function checks that the results of all contenders for a few users agree.

        Args:
            model: name of the model in MODELS.
            precision: `fp32` or `bf16`.
            names: names of the peers.
        """
        path, spec = self._model(model), self.spec
        runs: dict[str, Any] = {
            f"{name}_{precision}": joined(self.spark, spec, name, path, precision) for name in names
        }
        scored_by_name = {name: contender.frame(self.small).toPandas() for name, contender in runs.items()}
        first = next(iter(scored_by_name.values()))
        for name, frame in scored_by_name.items():
            require_equal_rows(name, frame, first, CLOSE[precision])
        keys = pq.read_table(self.items, columns=["item_index", "item_key"]).to_pandas()
        pairs = first.merge(keys, on="item_index").rename(columns={"item_key": "item_id"})
        requests = {precision: request_of(path, precision)}
        if (model, precision) == ("dlrm", "fp32"):
            requests["int8"] = request_of(path, embeddings="int8")
        for form, request in requests.items():
            if request is not None:
                ours = lists(self.spark, spec, self.items, request)
                require_equal_lists("ours", ours.frame(self.small).toPandas(), pairs, CLOSE[form])
                runs[f"ours_{form}"] = ours
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
        speeds = self._alternate(runs, data)
        print("scoring: bare_model …", file=sys.stderr, flush=True)
        bare = rows_per_s(request, data.joined, self.options.cores, max(self.options.turns, 2))
        return speeds | {"bare_model": spread(bare)}

    def _null(self) -> Speeds:
        """Measures our contender and the peers with the model that returns 0.

        The number of users is larger than for other models: with few rows, most of the time would be the
        fixed time of a job.
        """
        times = 10 if self.options.quick else 2
        data = self._data(times * self.options.users, self.options.candidates, joined=True)
        settle([*data.users, *data.joined_files])
        runs = self._lists_and_joined("null", "fp32", tuple(JOINED))
        request = request_of(self._model("null"))
        assert request is not None
        runs["ours_rows"] = Rows(self.spark, request)
        return self._alternate({f"{name}_null": contender for name, contender in runs.items()}, data)

    def _top(self, data: Data) -> Speeds:
        request = request_of(self._model("hash"))
        assert request is not None
        ours, theirs = (
            lists(self.spark, self.spec, self.items, request),
            window(self.spark, self.spec, self.items),
        )
        pairs = scored_pairs(self.small, self.spec, self.items)
        require_equal_lists("ours", ours.frame(self.small).toPandas(), pairs, CLOSE["fp32"])
        require_equal_lists("row_number", theirs.frame(self.small).toPandas(), pairs, CLOSE["fp32"])
        speeds: Speeds = {}
        for name, factor in (("1m", 1), ("8m", 8)):
            if factor == 1 or not self.options.quick:
                sized = self._data(
                    factor * 1_000_000 // self.options.candidates, self.options.candidates, joined=False
                )
                settle([*sized.users, *pair_files(sized, self.spec, self.items)])
                runs = {f"ours_top_{name}": ours, f"row_number_{name}": theirs}
                speeds |= self._alternate(runs, sized)
        return speeds

    def _alternate(self, runs: Runs, data: Data) -> Speeds:
        """Runs the contenders in turns.

        Before each timed run, a contender scores a few users, so that its model is loaded.
        """
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
        return {name: spread(rates) for name, rates in speeds.items()}


def spread(speeds: Sequence[float]) -> dict[str, float]:
    return {
        "pairs_per_s": round(statistics.median(speeds)),
        "lowest": round(min(speeds)),
        "highest": round(max(speeds)),
    }
