"""Measures the search of the source `retrieval`: exact and approximate, compared with faiss called by hand.

    .venv/bin/python benchmarks/retrieval.py [--quick] [--only NAME …]

The vectors of items and users have 64 elements and come from a mixture: a thousand topics with popularities that
fall as 1 / rank, whose directions have falling variances, as those of trained models do. The lengths of the item
vectors vary. Each contender runs in a process of its own with one thread, builds what it needs for 100,000 and for a
million items, and searches 200 items of each of 1,000 users. Recall is the share of the items that NumPy finds by
comparing each user with all items. Building includes k-means and copies of the vectors. Memory is the peak of the
process, which has the vectors once before it builds.

* exact: our tiled search with torch.
* approximate: our clusters, with the settings that ship.
* faiss flat: IndexFlatIP, which compares each user with all items.
* faiss HNSW: IndexHNSWFlat with inner products, 32 neighbours, efConstruction 100, efSearch 400; up to 100,000 items,
  because building the graph takes long.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import GIB, machine, summary_line, table

ROOT = Path(__file__).resolve().parent.parent
WIDTH, USERS, N, TOPICS, SEED = 64, 1_000, 200, 1_000, 7
SIZES, QUICK_SIZES = (100_000, 1_000_000), (20_000, 100_000)
NEIGHBOURS, BUILD_EFFORT, SEARCH_EFFORT, GRAPH_ITEMS = 32, 100, 400, 100_000

Vectors = NDArray[np.float32]
Lists = NDArray[np.int64]


def mixture(rows: int, seed: int, *, lengths_vary: bool) -> Vectors:
    """Returns vectors (rows, WIDTH) around common topics."""
    common, draw = np.random.default_rng(SEED), np.random.default_rng(seed)
    scale = (1 / np.sqrt(np.arange(1, WIDTH + 1))).astype(np.float32)
    topics = common.standard_normal((TOPICS, WIDTH)).astype(np.float32) * scale
    shares = 1 / np.arange(1, TOPICS + 1)
    vectors = topics[draw.choice(TOPICS, rows, p=shares / shares.sum())]
    vectors += 0.5 * draw.standard_normal((rows, WIDTH)).astype(np.float32) * scale
    if lengths_vary:
        vectors *= np.exp(0.2 * draw.standard_normal((rows, 1))).astype(np.float32)
    return vectors


def best_items(users: Vectors, items: Vectors) -> Lists:
    """Returns the N items with the largest dot products of each user, (USERS, N), in any order."""
    parts = [
        np.argpartition(-(users[first : first + 50] @ items.T), N, axis=1)[:, :N]
        for first in range(0, USERS, 50)
    ]
    return np.concatenate(parts)


def exact(items: Vectors) -> Callable[[Vectors], Lists]:
    """Our exact search."""
    import torch

    from scoring.candidates.item_vectors import MICRO_BATCH_USERS, TopItems, scores_in_a_block
    from scoring.ranking.top_k import split_keys

    of_items = torch.from_numpy(items)
    top = TopItems("benchmark", len(items), N, scores_in_a_block(of_items.device))
    none = torch.zeros(0, dtype=torch.int64)

    def search(users: Vectors) -> Lists:
        parts = []
        for block in torch.from_numpy(users).split(MICRO_BATCH_USERS):

            def products(first: int, last: int, block: Any = block) -> Any:
                return block @ of_items[first:last].T

            parts.append(split_keys(top.best(products, (none, none), range(len(block))))[1])
        return torch.cat(parts).numpy()

    return search


def approximate(items: Vectors) -> Callable[[Vectors], Lists]:
    """Our approximate search, with the default of `probes`."""
    import torch

    from scoring.candidates.item_vectors import MICRO_BATCH_USERS
    from scoring.candidates.retrieval import ApproximateSearch, clusters_of
    from scoring.candidates.sources.retrieval import Settings as Retrieval
    from scoring.ranking.top_k import split_keys

    probes = Retrieval.model_fields["probes"].default
    searching = ApproximateSearch.of(items, clusters_of(items), probes, 1)
    none = torch.zeros(0, dtype=torch.int64)

    def search(users: Vectors) -> Lists:
        blocks = torch.from_numpy(users).split(MICRO_BATCH_USERS)
        return torch.cat([split_keys(searching.best(block, (none, none), N))[1] for block in blocks]).numpy()

    return search


def faiss_flat(items: Vectors) -> Callable[[Vectors], Lists]:
    """IndexFlatIP."""
    import faiss

    index: Any = faiss.IndexFlatIP(WIDTH)
    index.add(items)
    return lambda users: index.search(users, N)[1]


def faiss_hnsw(items: Vectors) -> Callable[[Vectors], Lists]:
    """IndexHNSWFlat."""
    import faiss

    index: Any = faiss.IndexHNSWFlat(WIDTH, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = BUILD_EFFORT, SEARCH_EFFORT
    index.add(items)
    return lambda users: index.search(users, N)[1]


CONTENDERS: dict[str, Callable[[Vectors], Callable[[Vectors], Lists]]] = {
    "exact": exact,
    "approximate": approximate,
    "faiss flat": faiss_flat,
    "faiss HNSW": faiss_hnsw,
}


def run(contender: str, folder: str) -> dict[str, float]:
    """Builds and searches in this process. Returns CPU seconds, which are wall seconds of one free core."""
    import faiss
    import torch

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    items, users, best = (np.load(f"{folder}/{name}.npy") for name in ("items", "users", "best"))
    began = time.process_time()
    search = CONTENDERS[contender](items)
    built = time.process_time() - began
    search(users[:32])  # a warm-up: the first call takes longer
    began, began_wall = time.process_time(), time.perf_counter()
    lists = search(users)
    seconds, wall = time.process_time() - began, time.perf_counter() - began_wall
    recall = np.mean([len(np.intersect1d(a, b)) / N for a, b in zip(lists, best, strict=True)])
    # VmHWM begins at zero when a program starts; ru_maxrss also counts the process that started it.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024 / GIB
    figures = {"build_cpu_s": built, "cpu_s_per_1000_users": seconds, "wall_s_per_1000_users": wall}
    return {
        name: round(value, 3)
        for name, value in {**figures, "recall": float(recall), "peak_gib": peak}.items()
    }


def measured(contender: str, folder: str) -> dict[str, float]:
    """Runs a contender in a process of its own."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, __file__, "--contender", json.dumps([contender, folder])],
        cwd=ROOT,
        env={**os.environ, **threads, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="20,000 and 100,000 items")
    parser.add_argument("--only", action="append", default=[], choices=CONTENDERS, help="name of a contender")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.contender:
        print(json.dumps(run(*json.loads(options.contender))))
        return
    names = [name for name in CONTENDERS if not options.only or name in options.only]
    figures: dict[str, dict[int, dict[str, float]]] = {name: {} for name in names}
    sizes = QUICK_SIZES if options.quick else SIZES
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            users, items = mixture(USERS, 1, lengths_vary=False), mixture(size, 2, lengths_vary=True)
            for name, array in (("users", users), ("items", items), ("best", best_items(users, items))):
                np.save(f"{folder}/{name}.npy", array)
            del items
            for name in names:
                if name == "faiss HNSW" and size > GRAPH_ITEMS:
                    continue
                figures[name][size] = measured(name, folder)
                print(
                    f"retrieval: {name}, {size:,} items: {figures[name][size]}", file=sys.stderr, flush=True
                )
    head = ("contender", "items", "build, CPU s", "CPU s/1,000 users", f"recall@{N}", "peak GiB")
    keys = ("build_cpu_s", "cpu_s_per_1000_users", "recall", "peak_gib")
    rows = [
        (name, f"{size:,}", *(f"{of[key]:.3f}" for key in keys))
        for name in names
        for size, of in figures[name].items()
    ]
    print(table(head, rows))
    named = {name: {str(size): of for size, of in figures[name].items()} for name in names}
    key, ours = "cpu_s_per_1000_users", figures.get("approximate", {})
    ratios = {
        f"{name}, {size}": of[key] / ours[size][key]
        for name in names
        if name != "approximate"
        for size, of in figures[name].items()
        if size in ours
    }
    ours_by_name: dict[str, Any] = {
        name: named.pop(name) for name in ("exact", "approximate") if name in named
    }
    print(summary_line("retrieval", machine(1, ("faiss-cpu", "torch", "numpy")), ours_by_name, named, ratios))


if __name__ == "__main__":
    main()
