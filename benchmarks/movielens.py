"""Compares our lists for MovieLens with lists of the most popular films and of EASE, by HR@10 and NDCG@10.

    .venv/bin/python benchmarks/movielens.py --data /path/to/ml-100k [--quick] [--set a.b=c …]

Our lists are those of the shipped configuration conf/datasets/movielens.yaml. The protocol is leave-last-out.
The last film that a user rated 4 or more is the test film, and the film before that is the validation film.
For each user, all films are ranked except those that the user had rated before the test film. The jobs of the
product make the splits, our lists, and the table of excluded films. The peers rank the same films for the
same users. All contenders learn only from the train split. Films with equal scores are ordered by film id.

For EASE, the script chooses the penalty with the best NDCG@10 on the validation films. For this choice, the
lists exclude only films that the user rated in the train split. Our model is trained as its configuration says. The script
computes our HR@10 and NDCG@10 itself. It fails if measure_recommendations published other figures. Each ratio is our NDCG@10 divided by the peer's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.peers.ease import ease_weights
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from conf.types import Config, Split
from storage.dataset import read_dataset, split_files
from storage.manifest import data_files, read_manifest
from storage.paths import Lake, Partition

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "conf/datasets/movielens.yaml"
CACHE = Path.home() / ".cache/nightrank/benchmarks/movielens"
RUN_DATE = "1998-04-23"
PENALTIES = (10.0, 30.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0)
QUICK = ("train.epochs=1", "negatives.per_positive=1")

Scores = NDArray[np.float64]
Lists = NDArray[np.int64]


@dataclass(frozen=True)
class Figures:
    """The quality of the lists of one contender: means over all users with a test film.

    Attributes:
        hit_rate: HR@10.
        ndcg: NDCG@10.
        hit_rate_error: standard error of `hit_rate`.
    """

    hit_rate: float
    ndcg: float
    hit_rate_error: float


@dataclass(frozen=True)
class Task:
    """The data of the benchmark as matrices of U users and I films.

    Users and films are in the order of their keys.

    Attributes:
        train: 1 where the user rated the film 4 or more in the train split, otherwise 0; shape (U, I).
        rated: True where the user rated the film in the train split; shape (U, I).
        excluded: True where the film must not be in the user's list; shape (U, I).
        validation: the index of each user's validation film, or -1 if there is none; shape (U,).
        test: the index of each user's test film, or -1 if there is none; shape (U,).
        warm: True if the user has a rating in the train split; shape (U,).
    """

    train: Scores
    rated: NDArray[np.bool_]
    excluded: NDArray[np.bool_]
    validation: Lists
    test: Lists
    warm: NDArray[np.bool_]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", default="data/ml-100k", help="folder of ml-100k.inter, .user and .item")
    parser.add_argument("--quick", action="store_true", help=f"a smaller training: {' '.join(QUICK)}")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        help="change a configuration key, as --set of nightly does",
    )
    options = parser.parse_args(arguments)
    data = Path(options.data).resolve()
    if not (data / "ml-100k.inter").is_file():
        parser.error(
            f"--data={options.data}: this folder has no file ml-100k.inter; give the folder of MovieLens 100k"
        )
    settings = [
        f"data={data}",
        f"lake={CACHE / 'lake'}",
        *(QUICK if options.quick else ()),
        *options.overrides,
    ]
    config = load_config(str(CONFIG), settings)
    lake, k = Lake(config.lake), config.score.k
    seconds = run_night(settings)
    task, people, films = read_task(lake, config)
    started = time.monotonic()
    scores = {"most_popular": np.broadcast_to(task.train.sum(0), task.train.shape)}
    penalty = tuned_penalty(task, k)
    scores["ease"] = task.train @ ease_weights(task.train, penalty)
    peers = {name: of_lists(top(score, task.excluded, k), task) for name, score in scores.items()}
    ours = of_lists(published_lists(lake, people, films, k), task)
    users = int((task.warm & (task.test >= 0)).sum())
    require_published(lake, ours, peers["most_popular"], users)
    contenders = {"ours": ours, **peers}
    print(table(["lists", "HR@10", "standard error", "NDCG@10", "ours is"], _rows(contenders)))
    facts = {name: asdict(peer) for name, peer in peers.items()}
    facts["ease"] |= {"penalty": penalty, "seconds": round(time.monotonic() - started, 1)}
    ratios = {name: ours.ndcg / peer.ndcg for name, peer in peers.items()}
    own_facts = {**asdict(ours), "night_seconds": round(seconds, 1)}
    more = {"quick": options.quick, "overrides": options.overrides, "users": users}
    of_machine = machine(len(os.sched_getaffinity(0)), ("torch", "numpy"))
    print(summary_line("movielens", of_machine, own_facts, facts, ratios, **more))
    return 0


def run_night(settings: Sequence[str]) -> float:
    """Runs the complete chain of jobs with new tables, and returns its seconds."""
    shutil.rmtree(CACHE / "lake", ignore_errors=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "jobs/nightly.py"), "--config", str(CONFIG), "--retrain"]
    command += ["--run-date", RUN_DATE, *(part for setting in settings for part in ("--set", setting))]
    print("movielens: the night …", file=sys.stderr, flush=True)
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.monotonic() - started


def read_task(lake: Lake, config: Config) -> tuple[Task, pd.Index, pd.Index]:
    """Reads the matrices of the benchmark from the published tables.

    Returns:
        The task, the keys of its users, and the keys of its films.
    """
    dataset = read_dataset(lake, RUN_DATE)
    version = dataset.workflow_version
    numbered = read_rows(lake.candidate_items(version).partition(RUN_DATE)).sort_values("item_index")
    candidates = read_rows(lake.candidates(version).partition(RUN_DATE)).sort_values("user_key")
    films, users = pd.Index(numbered["item_key"]), pd.Index(candidates["user_key"])
    assert config.negatives is not None
    stride = config.negatives.per_positive + 1

    def logged(split: Split) -> pd.DataFrame:
        columns = ["row_id", "user_key", "item_key", "label"]
        files = split_files(lake, dataset, split)
        rows = pa.concat_tables(pq.read_table(file, columns=columns, partitioning=None) for file in files)
        frame = rows.to_pandas()
        frame = frame[frame["row_id"] % stride == 0]  # the other rows are sampled negatives
        return frame.assign(
            user=users.get_indexer(frame["user_key"]), film=films.get_indexer(frame["item_key"])
        )

    train = logged("train")
    rated = np.zeros((len(users), len(films)), np.bool_)
    rated[train["user"], train["film"]] = True
    liked = np.zeros_like(rated)
    liked[train[train["label"] == 1]["user"], train[train["label"] == 1]["film"]] = True
    excluded = np.zeros_like(rated)
    for user, gone in enumerate(candidates["excluded"]):
        if gone is not None:
            excluded[user, gone] = True

    def held_out(split: Split) -> Lists:
        rows = logged(split)
        rows = rows[rows["label"] == 1]
        assert rows["user"].is_unique
        film_of = np.full(len(users), -1, np.int64)
        film_of[rows["user"]] = rows["film"]
        return film_of

    task = Task(
        liked.astype(np.float64), rated, excluded, held_out("validation"), held_out("test"), rated.any(1)
    )
    return task, users, films


def read_rows(partition: Partition) -> pd.DataFrame:
    files = data_files(partition, read_manifest(partition))
    return pa.concat_tables(pq.read_table(file, partitioning=None) for file in files).to_pandas()


def published_lists(lake: Lake, users: pd.Index, films: pd.Index, k: int) -> Lists:
    """Returns the published lists as film indices (U, k). A list shorter than k is filled with -1."""
    rows = read_rows(lake.recommendations.partition(RUN_DATE))
    lists = np.full((len(users), k), -1, np.int64)
    user, film = (
        index.get_indexer(pd.Index(rows[key])) for index, key in ((users, "user_id"), (films, "item_id"))
    )
    lists[user, rows["position"] - 1] = film
    return lists


def top(scores: Scores, excluded: NDArray[np.bool_], k: int) -> Lists:
    """Returns, as film indices (U, k), the k films with the highest scores that are not excluded.

    Films with equal scores are in the order of their indices.
    """
    return np.argsort(np.where(excluded, np.inf, -scores), axis=1, kind="stable")[:, :k]


def measure(lists: Lists, wanted: Lists) -> Figures:
    """Measures the lists of users who have a relevant film.

    Args:
        lists: the film indices of each user's list; shape (U, k).
        wanted: the index of each user's only relevant film, or -1 if there is none; shape (U,). The NDCG of a
            list is 1 / log2(1 + position of this film), or 0 if the list does not contain the film.
    """
    asked = wanted >= 0
    hits = lists[asked] == wanted[asked][:, None]
    gains = hits / np.log2(np.arange(2, lists.shape[1] + 2))
    rate = float(hits.any(1).mean())
    return Figures(rate, float(gains.sum(1).mean()), float(np.sqrt(rate * (1 - rate) / asked.sum())))


def of_lists(lists: Lists, task: Task) -> Figures:
    """Measures the lists on the test films. Only users who have a rating in the train split are included.

    The job measure_recommendations calls these users warm.
    """
    return measure(lists, np.where(task.warm, task.test, -1))


def tuned_penalty(task: Task, k: int) -> float:
    """Returns the penalty of EASE that gives the best NDCG@10 on the validation films."""
    ndcg_by_penalty: dict[float, float] = {}
    for penalty in PENALTIES:
        lists = top(task.train @ ease_weights(task.train, penalty), task.rated, k)
        ndcg_by_penalty[penalty] = measure(lists, task.validation).ndcg
        print(
            f"movielens: EASE, λ={penalty:g}: validation {ndcg_by_penalty[penalty]:.4f}",
            file=sys.stderr,
            flush=True,
        )
    return max(ndcg_by_penalty, key=ndcg_by_penalty.__getitem__)


def require_published(lake: Lake, ours: Figures, popular: Figures, users: int) -> None:
    """Exits with an error if measure_recommendations published other figures than this script computed.

    These figures are the number of users, and hit rate and NDCG of our lists and of the most popular films.
    """
    facts = read_manifest(lake.measures.partition(RUN_DATE)).facts
    published = [
        facts["users"],
        *(measures[key] for measures in (facts, facts["popular"]) for key in ("hit_rate", "ndcg")),
    ]
    counted = [users, ours.hit_rate, ours.ndcg, popular.hit_rate, popular.ndcg]
    if not np.allclose(published, counted, rtol=0, atol=1e-9):
        raise SystemExit(
            "movielens: (users, our hit rate and NDCG, those of the most popular films) differ: "
            f"measure_recommendations published {published}, this script computed {counted}"
        )


def _rows(contenders: Mapping[str, Figures]) -> list[list[str]]:
    rows = []
    for name, figures in contenders.items():
        ratio = "" if name == "ours" else f"{contenders['ours'].ndcg / figures.ndcg:.2f} ×"
        rows.append(
            [name, f"{figures.hit_rate:.4f}", f"{figures.hit_rate_error:.4f}", f"{figures.ndcg:.4f}", ratio]
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
