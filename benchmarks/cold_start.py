"""Measures lists for users and items that a model does not know, for several values of train.unknown_share.

    .venv/bin/python benchmarks/cold_start.py [--data FOLDER] [--seeds N] [--shares S …] [--replace WHAT …]

The logs are those of benchmarks/cold_logs.py: the generated log, and MovieLens 100k if `--data` names a folder
with its files. Ids of items, of users, or of both are replaced with the same share. All items are ranked for
every user, and lists are compared with clicks that are not train rows. The peers are lists of the most popular
items of the train rows, over all users and over users of the same segment (MovieLens: gender and age).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from benchmarks.cold_logs import ColdLog, generated_log, movielens_log
from benchmarks.quality import CONFIG, prepare
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from conf.types import ModelConfig, Split, Train
from storage.feature_spec import ITEM_KEY, LABEL, USER_KEY, pad_lists
from training.checkpoints import load_model
from training.data.sharding import DataFile
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan
from training.models import complete

K = 10
FILE_ROWS = 8192
_OTHER_ROWS = 100
DLRM = {"architecture": "dlrm", "embedding_dim": 16, "bottom_mlp": [16, 16], "top_mlp": [64, 32]}
# Settings like those of movielens.yaml, for a DLRM with the ids of users and items.
MOVIELENS = {
    "global_batch_size": 512,
    "epochs": 4,
    "negatives": {"per_positive": 8},
    "loss": "softmax",
    "learning_rate": 0.002,
    "embedding_learning_rate": 0.01,
    "embeddings": {"optimizer": "lazy_adam"},
}
Scores = Callable[[Sequence[str]], NDArray[np.float64]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, help="folder with ml-100k.inter, .user and .item")
    parser.add_argument("--seeds", type=int, default=3, help="training runs with each share (default 3)")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.1, 0.3], help="unknown_share")
    parser.add_argument("--replace", nargs="+", default=["both", "item"], choices=["both", "item", "user"])
    parser.add_argument("--quick", action="store_true", help="a smaller generated log")
    parser.add_argument("--only", choices=["generated", "movielens"], help="measure one log only")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    for name in [options.only] if options.only else ["generated", "movielens"]:
        if name == "movielens" and options.data is None:
            print("cold_start: movielens is skipped, because --data is missing", file=sys.stderr)
            continue
        log, model, train = open_log(name, options.data, quick=options.quick)
        results[name] = {
            "most popular": figures(log, popular_scores(log)),
            "most popular of the segment": figures(log, popular_scores(log, log.segment)),
            **{
                _name(unknown): _over_seeds(
                    [
                        train_and_measure(log, model, {**train, "seed": seed}, unknown)
                        for seed in range(options.seeds)
                    ]
                )
                for unknown in unknown_shares(log, options.shares, options.replace)
            },
        }
        head = [name, *_SHOWN]
        print(table(head, [[of, *_cells(values)] for of, values in results[name].items()]), flush=True)
    print(summary_line("cold_start", machine(1, ("torch",)), results, {}, {}, seeds=options.seeds))
    return 0


def open_log(
    name: str, data: Path | None, *, quick: bool = False
) -> tuple[ColdLog, ModelConfig, dict[str, Any]]:
    """Returns a log, the model, and the settings of the training other than `unknown_share`."""
    if name == "movielens":
        assert data is not None
        model = complete(ModelConfig.model_validate(DLRM))
        return movielens_log(data), model, MOVIELENS
    lake = prepare(quick)
    config = load_config(str(CONFIG), [f"lake={lake.root}"])
    settings = config.train.model_dump(mode="json", exclude_unset=True, exclude={"baselines"})
    # Two epochs on three days have as many steps as the demo, which trains on six days.
    return generated_log(lake, config), complete(config.model), {**settings, "epochs": 2}


def unknown_shares(log: ColdLog, shares: Sequence[float], replaced: Sequence[str]) -> list[dict[str, float]]:
    """Returns the values of `train.unknown_share` that are compared. A share of 0 replaces nothing."""
    names = {"item": [log.item], "user": [log.user], "both": [log.user, log.item]}
    above = [share for share in shares if share]
    none: list[dict[str, float]] = [{}] if len(above) < len(shares) else []
    return none + [dict.fromkeys(names[what], share) for what in replaced for share in above]


def _name(unknown: Mapping[str, float]) -> str:
    return "DLRM, " + (" ".join(f"{name}={share:g}" for name, share in unknown.items()) or "nothing replaced")


def train_and_measure(
    log: ColdLog, model: ModelConfig, train: Mapping[str, Any], unknown: Mapping[str, float]
) -> dict[str, float]:
    """Trains a model on the train rows, and returns the figures of its lists."""
    settings = Train.model_validate({**train, "num_ranks": 1, "unknown_share": dict(unknown)})
    with tempfile.TemporaryDirectory() as folder:
        files = tuple(write_files(log, Path(folder) / "train", log.train))
        # Training also measures the model on the other splits, which must contain both labels. These measures are not used.
        day, rows = next(iter(log.train.items()))
        some = rows.iloc[:_OTHER_ROWS].assign(**{LABEL: np.arange(_OTHER_ROWS, dtype=np.float32) % 2})
        other = tuple(write_files(log, Path(folder) / "other", {day: some}))
        splits: dict[Split, tuple[DataFile, ...]] = {"train": files, "validation": other, "test": other}
        description = {
            "name": "cold_start",
            "version": "cold_start",
            "architecture": model.architecture,
            "model": model.model_dump(mode="json"),
            "feature_spec": log.spec.to_json(),
        }
        paths = (f"{folder}/model", f"{folder}/checkpoint")
        plan = TrainPlan(description, model, settings, log.spec, splits, files, *paths, parent_path=None)
        train_in_process(plan)
        result = figures(log, model_scores(log, model, plan.model_path))
    print(f"cold_start: {_name(unknown)}, seed {settings.seed}: {result}", file=sys.stderr, flush=True)
    return result


def write_files(log: ColdLog, folder: Path, days: Mapping[str, pd.DataFrame]) -> list[DataFile]:
    """Writes the feature rows of some days as files."""
    folder.mkdir()
    files = []
    for day, rows in days.items():
        for first in range(0, len(rows), FILE_ROWS):
            part = rows.iloc[first : first + FILE_ROWS]
            columns = {name: part[name].tolist() for name in (*log.spec.key_columns, log.spec.label)}
            types = {"row_id": pa.int64(), "label": pa.float32()}
            arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
            for feature in log.spec.features:
                kind = {"dense": pa.float32(), "categorical": pa.int32()}.get(
                    feature.kind, pa.list_(pa.int32())
                )
                arrays[feature.name] = pa.array(part[feature.name].tolist(), kind)
            path = folder / f"{day}-{first}.parquet"
            pq.write_table(pa.table(arrays), path, row_group_size=FILE_ROWS)
            files.append(DataFile(str(path), len(part), dt=day))
    return files


def model_scores(log: ColdLog, model: ModelConfig, path: str) -> Scores:
    """Returns a function that computes the logits of users for all items, (users, items), by a stored model."""
    trained = load_model(path, torch.device("cpu")).model.eval()
    items_dense, items_ids = _inputs(log, model, log.items.assign(**log.context))
    users_dense, users_ids = _inputs(log, model, log.users)
    place = {key: index for index, key in enumerate(log.users[USER_KEY])}

    def scores(users: Sequence[str]) -> NDArray[np.float64]:
        with torch.no_grad():
            return np.stack(
                [
                    trained(users_dense[place[user]] + items_dense, users_ids[place[user]] + items_ids)
                    .double()
                    .numpy()
                    for user in users
                ]
            )

    return scores


def _inputs(log: ColdLog, model: ModelConfig, rows: pd.DataFrame) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the inputs of a model, with zeros for the features that `rows` do not have."""
    zeros = np.zeros(len(rows))
    dense = [rows.get(feature.name, zeros) for feature in log.spec.dense]
    ids = [rows.get(feature.name, zeros) for feature in log.spec.categorical]
    columns = [np.asarray(column, np.int64)[:, None] for column in ids]
    lengths = log.spec.list_lengths(model.multi_hot)
    for feature, length in zip(log.spec.multi_hot, lengths, strict=True):
        lists = rows[feature.name].tolist() if feature.name in rows else [[]] * len(rows)
        columns.append(pad_lists(pa.array(lists, pa.list_(pa.int32())), length).astype(np.int64))
    matrix = np.stack([np.asarray(column, np.float32) for column in dense], axis=1)
    return torch.from_numpy(matrix), torch.from_numpy(np.concatenate(columns, axis=1))


def popular_scores(log: ColdLog, by: str | None = None) -> Scores:
    """Returns a function that scores items by their clicks in the train rows, (users, items).

    With `by`, only clicks of users with the same value in this column of `users` count. Items with equally
    many clicks are ordered by the clicks of all users, and then by chance.
    """
    train = pd.concat(log.train.values())
    clicks = train.loc[train[LABEL] == 1, [USER_KEY, ITEM_KEY]]
    position = {key: index for index, key in enumerate(log.items[ITEM_KEY])}

    def counts(keys: pd.Series) -> NDArray[np.float64]:
        places = keys.map(position).dropna().astype(int)
        return np.bincount(places, minlength=len(position)).astype(float)

    of_all = counts(clicks[ITEM_KEY]) + 0.5 * np.random.default_rng(0).random(len(position))
    if by is None:
        return lambda users: np.tile(of_all, (len(users), 1))
    segment = log.users.set_index(USER_KEY)[by]
    of_segment = {
        value: counts(rows[ITEM_KEY]) for value, rows in clicks.groupby(clicks[USER_KEY].map(segment))
    }
    tie_break = of_all / (of_all.max() + 1)
    return lambda users: np.stack([of_segment.get(segment[user], 0 * of_all) + tie_break for user in users])


def figures(log: ColdLog, scores: Scores) -> dict[str, float]:
    """Returns HR@K and NDCG@K of lists by scores.

    For known users and for new users, clicks on known items count. For `new_items`, clicks of known users on new
    items count. `new_positions` is the share of new items in the lists of known users.
    """
    keys = log.items[ITEM_KEY].to_numpy()
    position = {key: index for index, key in enumerate(keys)}
    on_new = log.clicks[ITEM_KEY].isin(log.new_items)
    of_new = log.clicks[USER_KEY].isin(log.new_users)
    excluded = log.excluded.groupby(USER_KEY)[ITEM_KEY].agg(list).to_dict()
    result: dict[str, float] = {}
    for name, clicks in (
        ("known_users", log.clicks[~on_new & ~of_new]),
        ("new_users", log.clicks[~on_new & of_new]),
        ("new_items", log.clicks[on_new & ~of_new]),
    ):
        wanted = {str(user): set(items) for user, items in clicks.groupby(USER_KEY)[ITEM_KEY]}
        hits = np.zeros((len(wanted), K))
        positions = []
        for row, (user, items) in enumerate(wanted.items()):
            values = scores([user])[0].copy()
            values[[position[key] for key in excluded.get(user, ()) if key in position]] = -np.inf
            best = keys[np.argsort(-values, kind="stable")[:K]]
            hits[row] = [key in items for key in best]
            positions.append(np.mean([key in log.new_items for key in best]))
        gains = 1 / np.log2(np.arange(K) + 2)
        ideal = np.array([gains[: min(K, len(items))].sum() for items in wanted.values()])
        result[f"{name}_hr"] = float(hits.any(axis=1).mean())
        result[f"{name}_ndcg"] = float((hits @ gains / ideal).mean())
        result[f"{name}_count"] = len(wanted)
        if name == "known_users":
            result["new_positions"] = float(np.mean(positions))
    return result


_SHOWN = ("known_users_hr", "known_users_ndcg", "new_users_hr", "new_users_ndcg", "new_items_hr", "new_items_ndcg", "new_positions")  # fmt: skip


def _over_seeds(runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Returns the mean of each figure over the seeds, and the standard deviations."""
    means = {name: statistics.mean(run[name] for run in runs) for name in runs[0]}
    spread = {name: statistics.stdev(run[name] for run in runs) for name in runs[0]} if len(runs) > 1 else {}
    return {**means, "deviations": spread}


def _cells(values: Mapping[str, Any]) -> list[str]:
    return [f"{values[name]:.4f}" for name in _SHOWN]


if __name__ == "__main__":
    sys.exit(main())
