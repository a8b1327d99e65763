"""Measures how many pairs of user and item per second one GPU scores for top-k lists, in one process.

    .venv/bin/python benchmarks/gpu/list_pairs.py [--quick]

The model is a DLRM with the published layers and tables of at most a million rows. There are 20,000 items, and
20,000 users with 500 candidates each. Contenders:

    scorer        the pairs alone: users, items and their pairs are already on the GPU
    candidates    lists of users in memory: candidates are checked, divided, scored and ranked
    from_files    the same users, read from Parquet
    all_items     lists of 2,000 users whose candidates are all items

The rate of `candidates` divided by that of `scorer` is the ratio `of_scorer`; `of_aim` is the same rate divided
by 80 million pairs/s. `all_of_scorer` is the rate of `all_items` divided by that of `scorer`. Before anything
is measured, the lists from files are compared with those of users in memory. Without a GPU, shapes are tiny
and nothing is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.gpu.setting import CACHE, Setting, read_setting
from benchmarks.report import summary_line, table
from benchmarks.scoring_world import Data, make_data, make_items, make_model, make_spec
from benchmarks.steps import spread, wait_for
from scoring.model.predictor import load_predictor
from scoring.ranking.pairs import side_of
from scoring.ranking.recommender import ListRanker, load_recommender
from scoring.requests import CANDIDATES, ListRequest, ModelRequest, Precision

AIM, K = 80e6, 10
_MOST_ROWS, _ITEMS, _USERS, _CANDIDATES, _USERS_OF_ALL = 1_000_000, 20_000, 20_000, 500, 2_000
_TINY_ITEMS, _TINY_USERS, _TINY_CANDIDATES, _TINY_USERS_OF_ALL = 30, 6, 5, 3
_BATCH_USERS = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    speeds = measure(setting)
    rates = {name: figures["samples_per_s"] for name, figures in speeds.items()}
    ratios = {
        "of_scorer": rates["candidates"] / rates["scorer"],
        "all_of_scorer": rates["all_items"] / rates["scorer"],
        "of_aim": rates["candidates"] / AIM,
    }
    shown: dict[str, float | None] = {**ratios} if setting.measures else dict.fromkeys(ratios)
    print(setting.heading())
    print(table(["lists", "pairs/s"], [[name, f"{rate:,.0f}"] for name, rate in rates.items()]))
    for name, ratio in shown.items():
        if ratio is not None:
            print(f"{name}: {ratio:.2f}")
    if setting.measures:
        print("met" if rates["candidates"] >= AIM else "MISSED")
    print(summary_line("gpu_list_pairs", of_machine, speeds, {}, shown, aim=AIM))
    return 0


def measure(setting: Setting) -> dict[str, dict[str, float]]:
    """Returns the pairs per second of each contender.

    Raises:
        RuntimeError: lists from files differ from lists of users in memory.
    """
    folder = CACHE / f"list-pairs-{setting.most_rows or _MOST_ROWS}"
    spec = make_spec(min(setting.most_rows or _MOST_ROWS, _MOST_ROWS))
    of_all = _USERS_OF_ALL if setting.measures else _TINY_USERS_OF_ALL
    shapes = (
        (_ITEMS, _USERS, _CANDIDATES) if setting.measures else (_TINY_ITEMS, _TINY_USERS, _TINY_CANDIDATES)
    )
    items = make_items(folder, spec, shapes[0])
    data = make_data(folder, spec, items, *shapes[1:], joined=False)
    precision: Precision = "bf16" if setting.measures else "fp32"
    request = ModelRequest(make_model(folder, "published", spec), "auto", None, precision)
    predictor = load_predictor(request, None, 1)
    recommender = load_recommender(ListRequest(request, (items,), (), K), predictor)
    batches = list(from_files(data))
    every = with_all_items(batches[0].slice(0, of_all))
    in_memory = list(recommender.recommend_all(iter(batches)))
    if not _rows(in_memory).equals(_rows(recommender.recommend_all(from_files(data)))):
        raise RuntimeError("lists of users from files differ from lists of the same users in memory")
    runs: dict[str, tuple[int, Callable[[], object]]] = {
        "scorer": (data.pairs, scorer(recommender, batches)),
        "candidates": (data.pairs, lambda: list(recommender.recommend_all(iter(batches)))),
        "from_files": (data.pairs, lambda: list(recommender.recommend_all(from_files(data)))),
        "all_items": (shapes[0] * every.num_rows, lambda: list(recommender.recommend(every))),
    }
    speeds = {}
    for name, (pairs, run) in runs.items():
        run()
        rates = []
        for _ in range(setting.turns):
            wait_for(setting.device)
            began = time.perf_counter()
            run()
            wait_for(setting.device)
            rates.append(pairs / (time.perf_counter() - began))
        speeds[name] = spread(rates)
    return speeds


def from_files(data: Data) -> Iterator[pa.RecordBatch]:
    """Yields the users of all files in batches of one file."""
    for path in data.users:
        yield from pq.ParquetFile(path).iter_batches(_BATCH_USERS)


def with_all_items(users: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the users without lists of candidates, so that all items are their candidates."""
    columns = {name: users.column(name) for name in users.schema.names}
    columns[CANDIDATES] = pa.nulls(users.num_rows, columns[CANDIDATES].type)
    return pa.RecordBatch.from_arrays([*columns.values()], [*columns])


def _rows(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches).combine_chunks()


def scorer(recommender: ListRanker, batches: Sequence[pa.RecordBatch]) -> Callable[[], None]:
    """Returns a function that scores the candidates of all users, whose pairs are on the device already."""
    predictor, pair_scorer = recommender.predictor, recommender.list_scorer.pair_scorer
    prepared = []
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        side = side_of(rows, predictor.spec, predictor.multi_hot, "user").to(predictor.device)
        chosen = batch.column(CANDIDATES).flatten().to_numpy().reshape(batch.num_rows, -1)
        items = torch.tensor(chosen, dtype=torch.int64).to(predictor.device)
        prepared.append((side, torch.arange(batch.num_rows, device=predictor.device), items))

    def run() -> None:
        for side, which, items in prepared:
            pair_scorer.list_logits(pair_scorer.user_parts(side), which, items)

    return run


if __name__ == "__main__":
    sys.exit(main())
