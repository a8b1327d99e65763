"""Compares our lists with those of item-based baselines, EASE, ALS and BPR on logs of choices.

    .venv/bin/python benchmarks/lists.py --movielens /path/to/ml-100k [--log FILE …] [--quick] [--seeds N]

Protocol: leave-last-out and full ranking. A user's last choice is the test item, the choice before it the validation item.
All items are ranked, except those that the user has rated before the test. Models are fitted on the train split. A peer that
computes a user's scores from the user's choices uses those of the train and validation splits. The product makes the splits,
our lists and the excluded items; all contenders are measured on the same users. Equal scores are ordered by item.

Each peer takes the setting with the best NDCG@10 on the validation items, out of eight. Models with random numbers are trained
with several seeds; their figures are means over seeds. The interval is the 95% bootstrap interval of our NDCG@10 minus
the peer's, resampled by user. A ratio is our NDCG@10 divided by the peer's.

A FILE has lines `user item` in the order of time, or `user item time`; or it is a RecBole file `.inter` with these columns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd

from benchmarks.list_measures import Figures, Lists, Matrix, gains, measure, paired_interval, top
from benchmarks.list_task import Task, published_lists, read_task
from benchmarks.peers.ease import ease_weights
from benchmarks.peers.item_knn import item_knn_weights
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from conf.types import Config
from setup.console import SetupError
from setup.locked_environment import is_installed, locked_environment
from storage.manifest import read_manifest
from storage.paths import Lake

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path.home() / ".cache/nightrank/benchmarks/lists"
LOCK = ROOT / "requirements/benchmark-lists.txt"
PENALTIES = (10.0, 30.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0)
NEIGHBOURS = tuple(itertools.product((20, 50, 100, 200), (0.0, 10.0)))
QUICK = ("train.epochs=1", "train.negatives.per_positive=4")


@dataclass(frozen=True)
class Log:
    """A log of choices: its name, the configuration, the run date, and the overrides that name its files."""

    name: str
    config: Path
    run_date: str
    overrides: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--movielens", help="folder of ml-100k.inter, .user and .item")
    parser.add_argument(
        "--log", action="append", default=[], help="file of choices; can be given several times"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch, few settings")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="as --set of nightly")
    options = parser.parse_args(arguments)
    if not options.movielens and not options.log:
        parser.error("there is no log: give --movielens or --log")
    seeds = 1 if options.quick else options.seeds
    settings = (*(QUICK if options.quick else ()), *options.overrides)
    logs = [_movielens(options.movielens, parser)] if options.movielens else []
    logs += [_choices(Path(path), parser) for path in options.log]
    facts = {log.name: compare(log, settings, seeds, quick=options.quick) for log in logs}
    ratios = {
        f"{log} {name}": ndcg_ratio
        for log, of_log in facts.items()
        for name, ndcg_ratio in of_log["ratios"].items()
    }
    ours = {log: of_log["ours"] for log, of_log in facts.items()}
    peers = {log: of_log["peers"] for log, of_log in facts.items()}
    of_machine = machine(len(os.sched_getaffinity(0)), ("torch", "numpy"))
    more = {"quick": options.quick, "seeds": seeds, "overrides": options.overrides}
    print(summary_line("lists", of_machine, ours, peers, ratios, **more))
    return 0


def _movielens(folder: str, parser: argparse.ArgumentParser) -> Log:
    data = Path(folder).resolve()
    if not (data / "ml-100k.inter").is_file():
        parser.error(f"--movielens={folder}: this folder has no file ml-100k.inter")
    return Log("movielens", ROOT / "conf/datasets/movielens.yaml", "1998-04-23", (f"data={data}",))


def _choices(path: Path, parser: argparse.ArgumentParser) -> Log:
    """Writes the choices of a file in the layout of lists.yaml."""
    if not path.is_file():
        parser.error(f"--log={path}: there is no such file")
    folder = CACHE / "logs" / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    choices = read_choices(path)
    choices.assign(chosen=1).to_csv(folder / "choices.tsv", sep="\t", index=False, header=False)
    return Log(path.stem, ROOT / "benchmarks/lists.yaml", "2000-01-01", (f"data={folder}",))


def read_choices(path: Path) -> pd.DataFrame:
    """Returns user, item and time (in seconds) of the choices in a file; see the module's docstring.

    The first choice of an item by a user counts. Without times, the time is the number of the line.
    """
    if path.suffix == ".inter":
        rows = pd.read_csv(path, sep="\t", dtype=str)
        rows.columns = [name.split(":")[0] for name in rows.columns]
        rows = rows[["user_id", "item_id", "timestamp"]]
    else:
        rows = pd.read_csv(path, sep=r"\s+", header=None, dtype=str)
    if rows.shape[1] == 2:
        rows = rows.assign(time=np.arange(len(rows)))
    rows.columns = ["user", "item", "time"]
    rows["time"] = rows["time"].astype(float).astype(np.int64)
    return rows.sort_values("time", kind="stable").drop_duplicates(["user", "item"]).reset_index(drop=True)


def compare(log: Log, settings: Sequence[str], seeds: int, *, quick: bool) -> dict[str, Any]:
    """Runs all contenders on one log, prints their table, and returns their figures as JSON values."""
    lake = Lake(str(CACHE / "lake" / log.name))
    overrides = [*log.overrides, f"lake={lake.root}", *settings]
    config = load_config(str(log.config), overrides)
    k, lists = config.score.k, dict[str, list[Lists]]()
    started = time.monotonic()
    for seed in range(seeds):
        if seed == 0:
            shutil.rmtree(lake.root, ignore_errors=True)
        run_night(log, [*overrides, f"train.seed={seed}"])
        task = read_task(lake, config, log.run_date)
        lists.setdefault("ours", []).append(published_lists(lake, task, log.run_date, k))
        _require_published(lake, log.run_date, lists["ours"][-1], task)
    seconds = (time.monotonic() - started) / seeds
    lists["most_popular"] = [_lists_of(np.tile(task.chosen.astype(float), (len(task.users), 1)), task, k)]
    lists["item_knn"], knn = _tuned(
        NEIGHBOURS[:1] if quick else NEIGHBOURS,
        lambda setting: item_knn_weights(task.train, *setting),
        task,
        k,
    )
    lists["ease"], ease = _tuned(
        PENALTIES[2:3] if quick else PENALTIES, lambda penalty: ease_weights(task.train, penalty), task, k
    )
    of_implicit, implicit = _implicit(task, config, seeds, quick=quick)
    lists |= of_implicit
    tuned = {"item_knn": knn, "ease": ease, **implicit}
    return _report(log, task, lists, tuned, seconds)


def run_night(log: Log, overrides: Sequence[str]) -> None:
    """Runs the whole chain of the product for the log's run date."""
    command = [sys.executable, str(ROOT / "jobs/nightly.py"), "--config", str(log.config), "--retrain"]
    command += ["--run-date", log.run_date, *(part for one in overrides for part in ("--set", one))]
    print(f"lists: nightly on {log.name} …", file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def _lists_of(scores: Matrix, task: Task, k: int) -> Lists:
    return top(scores.__getitem__, task.excluded, k)


def _tuned(
    grid: Sequence[Any], weights_of: Callable[[Any], Matrix], task: Task, k: int
) -> tuple[list[Lists], dict[str, Any]]:
    """Returns the test lists of a model with item weights, and its setting with the best validation NDCG."""
    ndcg: dict[Any, float] = {}
    for setting in grid:
        scores = task.train @ weights_of(setting)
        found = top(scores.__getitem__, task.rated, k)
        ndcg[setting] = float(gains(found, task.validation)[:, 1].mean())
    best = max(ndcg, key=ndcg.__getitem__)
    return [_lists_of(task.history @ weights_of(best), task, k)], {
        "setting": best,
        "validation_ndcg": ndcg[best],
    }


def _implicit(
    task: Task, config: Config, seeds: int, *, quick: bool
) -> tuple[dict[str, list[Lists]], dict[str, Any]]:
    """Returns the lists of ALS and BPR by name, and their settings; nothing if they are not installed."""
    if quick and not is_installed("benchmark-lists", LOCK):
        print("lists: implicit is not installed; a run without --quick installs it", file=sys.stderr)
        return {}, {}
    try:
        python = locked_environment("benchmark-lists", LOCK, "import implicit") / "bin/python"
    except SetupError as error:
        print(f"lists: implicit cannot be installed: {error}", file=sys.stderr)
        return {}, {}
    with tempfile.TemporaryDirectory() as folder:
        into, out = Path(folder) / "task.npz", Path(folder) / "lists.npz"
        names = ("train", "history", "rated", "excluded", "validation")
        np.savez(into, k=config.score.k, **{name: getattr(task, name) for name in names})
        command = [str(python), str(ROOT / "benchmarks/peers/implicit_models.py"), str(into), str(out)]
        command += ["--seeds", str(seeds), *(["--quick"] if quick else [])]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        with np.load(out) as stored:
            lists = {name: [stored[f"{name}_{seed}"] for seed in range(seeds)] for name in ("als", "bpr")}
    return lists, json.loads(done.stdout.splitlines()[-1])


def _require_published(lake: Lake, run_date: str, lists: Lists, task: Task) -> None:
    """Fails unless the product published the same measures of its lists."""
    facts = read_manifest(lake.measures.partition(run_date)).facts
    published = [facts["users"], facts["hit_rate"], facts["ndcg"]]
    hit_rate, ndcg, _ = gains(lists, task.test).mean(0).tolist()
    counted = [int((task.test >= 0).sum()), hit_rate, ndcg]
    if not np.allclose(published, counted, rtol=0, atol=1e-9):
        raise SystemExit(
            f"lists: measure_recommendations published {published}, but the lists give {counted}"
        )


def _report(
    log: Log, task: Task, lists: dict[str, list[Lists]], tuned: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Prints the table of one log and returns the figures of its contenders."""
    users = int(task.rated.any(1).sum())
    by_user = {name: np.mean([gains(one, task.test) for one in of], axis=0) for name, of in lists.items()}
    figures: dict[str, dict[str, Any]] = {}
    rows = []
    for name, of in lists.items():
        all_seeds = [asdict(measure(one, task.test, task.chosen, users)) for one in of]
        means = Figures(**{key: float(np.mean([seed[key] for seed in all_seeds])) for key in all_seeds[0]})
        low, high = paired_interval(by_user["ours"][:, 1], by_user[name][:, 1])
        figures[name] = {**asdict(means), "seeds": len(of), **tuned.get(name, {})}
        if name != "ours":
            figures[name]["ours_minus_this_ndcg"] = [low, high]
        ratio = "" if name == "ours" else f"{by_user['ours'][:, 1].mean() / means.ndcg:.2f} ×"
        interval = "" if name == "ours" else f"{low:+.4f} to {high:+.4f}"
        numbers = (means.hit_rate, means.hit_rate_error, means.ndcg, means.reciprocal_rank, means.coverage)
        rows.append([name, *(f"{number:.4f}" for number in numbers), f"{means.novelty:.1f}", ratio, interval])
    head = ["lists", "HR@10", "standard error", "NDCG@10", "MAP@10", "coverage", "novelty", "ours is"]
    print(f"\n{log.name}: {int((task.test >= 0).sum())} users, {len(task.items)} items")
    print(table([*head, "ours − this, 95%"], rows), flush=True)
    ours = {**figures.pop("ours"), "night_seconds": round(seconds, 1)}
    ratios = {name: ours["ndcg"] / peer["ndcg"] for name, peer in figures.items()}
    return {"ours": ours, "peers": figures, "ratios": ratios}


if __name__ == "__main__":
    sys.exit(main())
