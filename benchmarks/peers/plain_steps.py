"""The steps of benchmarks/peers/plain_run.py after the log has been read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from benchmarks.peers.plain_data import CATEGORICAL, DENSE, ITEM, USER, RawFile, encode, fit, keys
from benchmarks.peers.plain_lists import Side, best_items
from benchmarks.peers.plain_model import DLRM, LogisticRegression, Model, OptimizerState, Rows, Trainer

TRAIN_DAYS = 6
K = 10
SEED = 0
CONTEXT = {
    "I11": "1",
    "I12": "90",
    "I13": "3",
    "C21": "b1dfab5b",
    "C22": "0ee73df9",
    "C23": "e377a9bf",
    "C24": "133d22d9",
    "C25": "ae44923f",
    "C26": "31c65e05",
}


class RetrainingRun:
    """Encodes a log, trains and measures models, and makes lists.

    Args:
        days: the files of each day: train days, the validation day and the test day.
        options: the options of the command line.
    """

    def __init__(self, days: Sequence[Sequence[RawFile]], options: argparse.Namespace) -> None:
        torch.manual_seed(SEED)
        self._options = options
        self._model_file = options.out / "model.pt"
        self._before: dict[str, Any] | None = None
        if options.warm:
            self._before = torch.load(self._model_file, weights_only=False)
        files = [file for day in days for file in day]
        in_train = [file for day in days[:TRAIN_DAYS] for file in day]
        self._encoding = fit(in_train, self._before["encoding"] if self._before else None)
        self._log = log = encode(files, self._encoding, options.threads)
        self._dropped = sum(file.dropped for file in files)
        *_, newest, train_end, validation_end, end = np.cumsum(
            [0, *(sum(map(len, day)) for day in days)]
        ).tolist()
        self._train, self._newest = slice(0, train_end), slice(newest, train_end)
        self._validation, self._test = slice(train_end, validation_end), slice(validation_end, end)
        self._cardinalities = self._encoding.cardinalities
        starts = np.cumsum([0, *self._cardinalities])[:-1].astype(np.int32)
        np.add(log.ids, starts, out=log.ids)  # rows of one table for all columns
        self._starts = starts
        self._rows = Rows(
            torch.from_numpy(log.labels), torch.from_numpy(log.dense), torch.from_numpy(log.ids)
        )
        self._trainer = Trainer(self._rows, self._cardinalities, options.threads)

    def train(self) -> None:
        """Trains the DLRM: on all train days, or on the newest one from the weights of the run before."""
        self._model = DLRM(self._cardinalities)
        self._state = OptimizerState.new(self._model)
        if self._before is None:
            self._trainer.train(self._model, self._state, self._train)
            return
        self._continue(self._before)
        self._trainer.train(self._model, self._state, self._newest)

    def _continue(self, before: dict[str, Any]) -> None:
        """Copies weights and optimizer state of the run before. Its ids are the first ids of each column."""
        old_start = 0
        for start, rows in zip(self._starts.tolist(), before["encoding"].cardinalities, strict=True):
            old = slice(old_start, old_start + rows)
            self._model.table[start : start + rows] = before["table"][old]
            self._state.accumulator[start : start + rows] = before["state"].accumulator[old]
            old_start += rows
        self._model.dense = [weight.requires_grad_() for weight in before["dense"]]
        self._state.moments, self._state.steps = before["state"].moments, before["state"].steps

    def save(self) -> None:
        """Stores what the next run needs to continue from this one."""
        self._options.out.mkdir(parents=True, exist_ok=True)
        stored = {
            "encoding": self._encoding,
            "table": self._model.table,
            "dense": [weight.detach() for weight in self._model.dense],
            "state": self._state,
        }
        torch.save(stored, self._model_file)

    def aucs(self) -> dict[str, float]:
        """Returns the AUC of the DLRM on the test day and on the validation day."""
        return {
            "auc": self._auc(self._model, self._test),
            "auc_validation": self._auc(self._model, self._validation),
        }

    def train_baseline(self) -> float:
        """Trains the logistic regression. Returns its AUC on the test day."""
        model = LogisticRegression(self._cardinalities)
        self._trainer.train(model, OptimizerState.new(model), self._train)
        return self._auc(model, self._test)

    def _auc(self, model: Model, chosen: slice) -> float:
        return auc(self._log.labels[chosen], self._trainer.predict(model, chosen).numpy())

    def make_lists(self) -> None:
        """Scores all items for all users, and writes the lists as Parquet."""
        users, items = self._log.users, self._log.items
        scores, best = best_items(
            self._model,
            self._side(users.latest()),
            self._side(items.latest()),
            self._context(),
            K,
            self._options.threads,
        )
        self._lists = best.numpy()
        table = {
            "user_id": pa.array(users.texts).take(pa.array(np.repeat(np.arange(len(users.texts)), K))),
            "position": np.tile(np.arange(1, K + 1, dtype=np.int32), len(users.texts)),
            "item_id": pa.array(items.texts).take(pa.array(self._lists.ravel())),
            "score": scores.numpy().ravel(),
        }
        path = self._options.out / f"recommendations-{self._options.run_date}.parquet"
        pq.write_table(pa.table(table), path, compression="zstd")

    def _side(self, rows: NDArray[np.int64]) -> Side:
        chosen = torch.from_numpy(rows)
        return Side(self._rows.dense[chosen], self._rows.ids[chosen])

    def _context(self) -> Side:
        """Returns one row with the fixed context. Its user and item columns are not used."""
        dense, ids = torch.zeros(1, len(DENSE)), torch.zeros(1, len(CATEGORICAL), dtype=torch.int64)
        for name, text in CONTEXT.items():
            if name in DENSE:
                column = DENSE.index(name)
                dense[0, column] = self._encoding.dense_value(column, text)
            else:
                column = CATEGORICAL.index(name)
                ids[0, column] = self._encoding.id_of(column, text) + int(self._starts[column])
        return Side(dense, ids)

    def hit_rate(self, next_day: Sequence[RawFile]) -> float:
        """Returns HR@10 on the clicks of the next day, over users with train rows."""
        users, items = self._log.users, self._log.items
        clicked = np.concatenate([file.labels() for file in next_day]) > 0
        of_users = _numbers(users.texts, keys(next_day, USER).of_rows(clicked))
        of_items = _numbers(items.texts, keys(next_day, ITEM).of_rows(clicked))
        warm = np.zeros(len(users.texts) + 1, bool)  # the last place is that of unknown users, number -1
        warm[users.rows[self._train]] = True
        measured = warm[of_users]
        of_users, of_items = of_users[measured], of_items[measured]
        hits = (self._lists[of_users] == of_items[:, None]).any(axis=1)
        return float(len(np.unique(of_users[hits])) / len(np.unique(of_users)))

    def counts(self) -> dict[str, int]:
        """Returns the number of kept rows, dropped rows, users and items."""
        log = self._log
        return {
            "rows": len(log.labels),
            "dropped": self._dropped,
            "users": len(log.users.texts),
            "items": len(log.items.texts),
        }


def _numbers(known: Sequence[str], texts: Sequence[str]) -> NDArray[np.int64]:
    """Returns the index of each text in `known`, or -1."""
    index = {text: number for number, text in enumerate(known)}
    return np.array([index.get(text, -1) for text in texts], np.int64)


def auc(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Returns the area under the ROC curve. Equal scores count half."""
    _, inverse = np.unique(scores, return_inverse=True)
    rows = np.bincount(inverse)
    positives = np.bincount(inverse, weights=labels)
    negatives_below = np.cumsum(rows - positives) - (rows - positives)
    wins = (positives * (negatives_below + (rows - positives) / 2)).sum()
    return float(wins / (positives.sum() * (rows - positives).sum()))
