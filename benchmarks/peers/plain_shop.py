"""A retraining run on the log of a web shop without Nightrank: one process with Polars, numpy and torch.

    python -m benchmarks.peers.plain_shop --log FOLDER --run-date DATE --out FOLDER [--next] [--only-rows]

The script computes what `nightly --retrain` computes with benchmarks/shop.yaml, as a data engineer would write it:

1. It reads sixteen days of clicks and the tables of users and items, and drops rows without user, item or time.
2. It makes the history of each click (the 50 items before it, the latest first). Beside each click it draws four
   items of the day, and leaves out those that the user has clicked on this day. It joins the attributes of users and
   items, and encodes all columns: ids, and log(1 + x) with mean 0 and deviation 1 for numbers.
3. It trains a DLRM for one epoch on fourteen days, and computes its AUC on the last day and on the day before.
4. It scores all items of the table of items for all users of the log and of the table of users, without the items
   that the user has clicked, and writes the ten best as Parquet.

With --next, it extends the vocabularies of the run before, continues from its weights, and makes rows only of the
newest train day and of the two days after it. With --only-rows, it ends after the second step.

It has no manifests, quarantine, data report or gate, writes no features, and starts from the beginning after a
failure. The last line of standard output is a JSON object: number of rows, AUC, and seconds by part.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import pickle
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

TRAIN_DAYS, WINDOW = 14, 16
HISTORY, NEGATIVES, K = 50, 4, 10
MIN_COUNT = 5
NULL_ID, UNKNOWN_ID, FIRST_ID = 1, 2, 3
CONTEXT_DEVICE = "mobile"
DIM, BOTTOM, TOP = 16, 64, (64, 32)
BATCH, LEARNING_RATE, EMBEDDING_LEARNING_RATE = 4096, 3e-3, 0.15
USER_COLUMNS, ITEM_COLUMNS = ("country", "newsletter"), ("category", "brand", "item")
COLUMNS = (*USER_COLUMNS, *ITEM_COLUMNS, "device")
_BLOCK_PAIRS = 65_536

Ints = NDArray[np.int32]


@dataclass
class Laps:
    """A stopwatch: `seconds` maps each part of the script to its seconds."""

    last: float = field(default_factory=time.perf_counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def end(self, part: str) -> None:
        """Records the end of a part, which began at the end of the part before."""
        now = time.perf_counter()
        self.seconds[part], self.last = round(now - self.last, 3), now


@dataclass
class Encoding:
    """What the fit learns, and the next run continues.

    Attributes:
        values: maps each categorical column to its values. The id of a value is its position plus 3.
        numbers: maps each numeric column to its median, and to mean and deviation of its logarithm.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    numbers: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def cardinalities(self) -> list[int]:
        return [FIRST_ID + len(self.values[column]) for column in COLUMNS]


@dataclass(frozen=True)
class Rows:
    """Encoded rows of n examples, ordered by day. Attributes of users and items are looked up by their numbers.

    Attributes:
        label: (n,) float32.
        day: (n,) number of the day in the window.
        click, user, item: (n,) number of the click, the user and the item of each row.
        ids: (n, 6) ids of COLUMNS.
        dense: (n, 2) float32: birth year, list price.
        history: (clicks, 50) ids of items; 0 at the end of a shorter history.
        user_rows, item_rows: (users, 2), (items, 3) ids of attributes; with user_dense (users,), item_dense (items,).
        latest: (users, 50) the history after the last click.
        in_catalogue: (items,) whether the table of items has the item.
        seen: (users, items) whether the user has clicked the item.
        users, items: the keys of the log, in the order of their first clicks, then those of only the tables.
    """

    label: NDArray[np.float32]
    day: NDArray[np.int16]
    click: Ints
    user: Ints
    item: Ints
    ids: Ints
    dense: NDArray[np.float32]
    history: Ints
    latest: Ints
    user_rows: Ints
    item_rows: Ints
    user_dense: NDArray[np.float32]
    item_dense: NDArray[np.float32]
    in_catalogue: NDArray[np.bool_]
    seen: NDArray[np.bool_]
    users: pl.Series
    items: pl.Series


def read_clicks(folder: Path, days: Sequence[str]) -> pl.DataFrame:
    """Returns the clicks of some days in the order of time, with `day` as the number of the day."""
    types = {"ts": pl.Int64, "user": pl.String, "item": pl.String, "device": pl.String, "weight": pl.Int64}
    frames = [
        pl.scan_csv(
            folder / f"clicks/{day}.csv",
            schema_overrides=types,
            ignore_errors=True,
            truncate_ragged_lines=True,
            quote_char=None,  # a quote is only part of a broken value here
        ).select(*types, pl.lit(number, pl.Int16).alias("day"))
        for number, day in enumerate(days)
    ]
    clicks = pl.concat(frames).filter(pl.col("weight") >= 1).drop_nulls(["ts", "user", "item"]).collect()
    return clicks.sort("ts", maintain_order=True)


def make_rows(folder: Path, clicks: pl.DataFrame, encoding: Encoding, days: Sequence[int]) -> Rows:
    """Makes the rows of some days of the window, and fits or extends the encoding on the train days among them."""
    random = np.random.default_rng(0)
    user_table = pl.read_csv(folder / "users.csv").unique("user", keep="first", maintain_order=True)
    item_table = pl.read_csv(folder / "items.csv").unique("item", keep="first", maintain_order=True)
    users, user = _codes(clicks["user"], user_table["user"])
    items, item = _codes(clicks["item"], item_table["item"])
    user_table = pl.DataFrame({"user": users}).join(user_table, "user", how="left", maintain_order="left")
    known = items.is_in(item_table["item"].implode()).to_numpy()
    item_table = pl.DataFrame({"item": items}).join(item_table, "item", how="left", maintain_order="left")
    seen = np.zeros((len(users), len(items)), bool)
    seen[user, item] = True
    history, latest = _histories(user, item, len(users))  # of item numbers, -1 where there is none

    day = clicks["day"].to_numpy()
    pairs = user.astype(np.int64) * len(items) + item
    parts = []
    for number in days:
        of_day = np.flatnonzero(day == number).astype(np.int32)
        items_of_day = np.unique(item[of_day])
        drawn_for = np.repeat(of_day, NEGATIVES)
        drawn = items_of_day[random.integers(0, len(items_of_day), len(drawn_for))]
        unseen = ~np.isin(user[drawn_for].astype(np.int64) * len(items) + drawn, pairs[of_day])
        kept, labels = drawn_for[unseen], np.array([1, 0], np.float32)
        parts += [(of_day, item[of_day], labels[:1].repeat(len(of_day)))]
        parts += [(kept, drawn[unseen], labels[1:].repeat(len(kept)))]
    click, of_item, label = (np.concatenate(of_parts) for of_parts in zip(*parts, strict=True))
    of_user, of_day = user[click], day[click]

    train = of_day < TRAIN_DAYS
    devices, device = _codes(clicks["device"])
    sources = {
        **{column: (user_table[column].cast(pl.String), of_user) for column in USER_COLUMNS},
        **{column: (item_table[column], of_item) for column in ITEM_COLUMNS},
        "device": (devices, device[click]),
    }
    ids = np.empty((len(click), len(COLUMNS)), np.int32)
    encoded = {}
    for place, column in enumerate(COLUMNS):
        values, number = sources[column]
        least = 1 if column == "item" else MIN_COUNT
        _extend(encoding, column, values, number[train], least)
        encoded[column] = _ids_of(encoding.values[column], values)
        ids[:, place] = encoded[column][number]
    user_dense = _dense(encoding, "birth_year", user_table["birth_year"], of_user[train])
    item_dense = _dense(encoding, "list_price", item_table["list_price"], of_item[train])
    item_ids = np.append(encoded["item"], 0)  # a history's number -1 is the padding
    return Rows(
        label=label,
        day=of_day,
        click=click,
        user=of_user,
        item=of_item,
        ids=ids,
        dense=np.stack([user_dense[of_user], item_dense[of_item]], axis=1),
        history=item_ids[history],
        latest=item_ids[latest],
        user_rows=np.stack([encoded[column] for column in USER_COLUMNS], axis=1),
        item_rows=np.stack([encoded[column] for column in ITEM_COLUMNS], axis=1),
        user_dense=user_dense,
        item_dense=item_dense,
        in_catalogue=known,
        seen=seen,
        users=users,
        items=items,
    )


def _codes(values: pl.Series, more: pl.Series | None = None) -> tuple[pl.Series, Ints]:
    """Returns the distinct values, and the number of each value's distinct value, (n,).

    The distinct values of `more` that are not among the values are the last ones.
    """
    distinct = (values if more is None else pl.concat([values, more])).unique(maintain_order=True)
    place = pl.DataFrame({"value": distinct}).with_row_index("code")
    joined = pl.DataFrame({"value": values}).join(
        place, "value", how="left", maintain_order="left", nulls_equal=True
    )
    return distinct, joined["code"].to_numpy().astype(np.int32)


def _histories(user: Ints, item: Ints, users: int) -> tuple[Ints, Ints]:
    """Returns the items before each click, (n, 50), and those after the last click of each user, (users, 50)."""
    by_user = np.argsort(user, kind="stable")
    sizes = np.bincount(user, minlength=users)
    ends = np.cumsum(sizes)
    before = np.arange(len(user)) - np.repeat(ends - sizes, sizes)
    padded = np.concatenate([np.full(HISTORY, -1, np.int32), item[by_user]])
    windows = sliding_window_view(padded, HISTORY)[:, ::-1]  # (n + 1, 50); row i ends before the click i
    places = np.arange(HISTORY)
    history = np.empty((len(user), HISTORY), np.int32)
    history[by_user] = np.where(places < before[:, None], windows[:-1], -1)
    return history, np.where(places < sizes[:, None], windows[ends], -1)


def _extend(encoding: Encoding, column: str, values: pl.Series, train: Ints, least: int) -> None:
    """Adds the values that occur at least `least` times in the train rows, by descending count."""
    counts = pl.DataFrame({"value": values, "count": np.bincount(train, minlength=len(values))})
    counts = counts.drop_nulls().group_by("value").agg(pl.col("count").sum())
    counts = counts.filter(pl.col("count") >= least).sort("count", "value", descending=[True, False])
    known = encoding.values.setdefault(column, [])
    old = set(known)
    known += [value for value in counts["value"].to_list() if value not in old]


def _ids_of(vocabulary: Sequence[str], values: pl.Series) -> Ints:
    ids = {value: place for place, value in enumerate(vocabulary, start=FIRST_ID)}
    return np.array(
        [NULL_ID if value is None else ids.get(value, UNKNOWN_ID) for value in values.to_list()], np.int32
    )


def _dense(encoding: Encoding, column: str, values: pl.Series, train: Ints) -> NDArray[np.float32]:
    numbers = values.cast(pl.Float64).to_numpy()
    if column not in encoding.numbers:
        of_rows = numbers[train]
        median = float(np.nanmedian(of_rows))
        logs = np.log1p(np.where(np.isnan(of_rows), median, of_rows))
        encoding.numbers[column] = (median, float(logs.mean()), float(logs.std()))
    median, mean, deviation = encoding.numbers[column]
    logs = np.log1p(np.where(np.isnan(numbers), median, numbers))
    return ((logs - mean) / deviation).astype(np.float32)


class ShopModel:
    """A DLRM with bottom MLP 64-16 and top MLP 64-32-1, and its training and lists.

    Eight vectors of 16 numbers: the bottom MLP of the two numbers, six ids, and the mean of the history's items.
    Row-wise Adagrad trains the embedding table, Adam all other parameters.
    """

    def __init__(self, encoding: Encoding, before: dict[str, Any] | None, threads: int) -> None:
        import torch
        from torch.nn import functional

        self._torch, self._f = torch, functional
        torch.manual_seed(0)
        torch.set_num_threads(1)  # of an operator; each thread of the pool computes a part of a batch
        self._threads, self._pool = threads, ThreadPoolExecutor(threads)
        cardinalities = encoding.cardinalities
        starts = np.cumsum([0, *cardinalities])[:-1]
        self._starts = torch.from_numpy(starts.astype(np.int32))
        self._item_start = int(starts[COLUMNS.index("item")])
        tables = [(torch.rand(rows, DIM) * 2 - 1) / math.sqrt(rows) for rows in cardinalities]
        vectors = 2 + len(COLUMNS)
        self._lower = torch.tril_indices(vectors, vectors, -1)
        self._pairs = self._lower[0] * vectors + self._lower[1]
        pairs = len(self._pairs)
        widths = ((2, BOTTOM), (BOTTOM, DIM), (DIM + pairs, TOP[0]), TOP, (TOP[1], 1))
        self._dense = []
        for width_in, width_out in widths:
            weight = torch.randn(width_out, width_in) * math.sqrt(2 / (width_in + width_out))
            self._dense += [weight, torch.randn(width_out) * math.sqrt(1 / width_out)]
        accumulators = [torch.zeros(rows) for rows in cardinalities]
        if before is not None:  # the ids of the run before are the first ids of each column
            for new, old in zip(tables, before["tables"], strict=True):
                new[: len(old)] = old
            for state, old in zip(accumulators, before["accumulators"], strict=True):
                state[: len(old)] = old
            self._dense = before["dense"]
        self._cardinalities = cardinalities
        self._table = torch.cat(tables).requires_grad_()
        self._accumulator = torch.cat(accumulators)
        for parameter in self._dense:
            parameter.requires_grad_()
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self._dense]
        if before is not None:
            self._moments = before["moments"]
        self._steps = before["steps"] if before is not None else 0

    def state(self) -> dict[str, Any]:
        """Returns what the next run continues from."""
        return {
            "tables": list(self._table.detach().split(self._cardinalities)),
            "accumulators": list(self._accumulator.split(self._cardinalities)),
            "dense": [parameter.detach() for parameter in self._dense],
            "moments": self._moments,
            "steps": self._steps,
        }

    def _logits(self, dense: Any, ids: Any, history: Any) -> Any:
        """Returns logits (B,) of numbers (B, 2), ids (B, 6) and histories (B, 50)."""
        f, table = self._f, self._table
        vectors = f.embedding(ids + self._starts, table)  # (B, 6, E)
        items = table[self._item_start : self._item_start + self._cardinalities[COLUMNS.index("item")]]
        pooled = f.embedding_bag(history, items, mode="mean", padding_idx=0)  # (B, E)
        w1, b1, w2, b2, *_ = self._dense
        bottom = f.linear(f.linear(dense, w1, b1).relu(), w2, b2).relu()
        stacked = self._torch.cat([bottom.unsqueeze(1), vectors, pooled.unsqueeze(1)], 1)  # (B, 8, E)
        dots = self._torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)  # (B, 64)
        return self._top(self._torch.cat([bottom, dots.index_select(1, self._pairs)], 1))

    def _top(self, inputs: Any) -> Any:
        *_, w3, b3, w4, b4, w5, b5 = self._dense
        hidden = self._f.linear(self._f.linear(inputs, w3, b3).relu(), w4, b4).relu()
        return self._f.linear(hidden, w5, b5).squeeze(-1)

    def train(self, rows: Rows, chosen: NDArray[np.int64]) -> None:
        """Trains for one epoch on the chosen rows in random order."""
        torch = self._torch
        order = chosen[torch.randperm(len(chosen)).numpy()]
        steps = -(-len(order) // BATCH)
        for step in range(steps):
            batch = order[step * BATCH : (step + 1) * BATCH]
            parts = np.array_split(batch, self._threads)
            gradients = list(self._pool.map(partial(self._gradients, rows, len(batch)), parts))
            of_table, *of_dense = (sum(of_parts) for of_parts in zip(*gradients, strict=True))
            self._update(of_table, of_dense, _rate_factor(step, steps))

    def _gradients(self, rows: Rows, batch_rows: int, part: NDArray[np.int64]) -> Sequence[Any]:
        """Returns the gradients of the table and of the dense parameters for a part of a batch."""
        logits, labels = self._logits(*self._inputs(rows, part)), self._torch.from_numpy(rows.label[part])
        loss = self._f.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / batch_rows
        return self._torch.autograd.grad(loss, [self._table, *self._dense])

    def _inputs(self, rows: Rows, batch: Any) -> tuple[Any, Any, Any]:
        parts = rows.dense[batch], rows.ids[batch], rows.history[rows.click[batch]]
        dense, ids, history = (self._torch.from_numpy(part) for part in parts)
        return dense, ids, history

    def _update(self, of_table: Any, of_dense: Sequence[Any], factor: float) -> None:
        torch = self._torch
        with torch.no_grad():
            self._accumulator += of_table.square().mean(1)
            rate = EMBEDDING_LEARNING_RATE * factor
            self._table.addcdiv_(of_table, self._accumulator.sqrt().add_(1e-8).unsqueeze(1), value=-rate)
            self._steps += 1
            corrected = LEARNING_RATE * factor / (1 - 0.9**self._steps)
            scale = math.sqrt(1 - 0.999**self._steps)
            for parameter, gradient, (first, second) in zip(
                self._dense, of_dense, self._moments, strict=True
            ):
                first.lerp_(gradient, 0.1)
                second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                parameter.addcdiv_(first, second.sqrt().div_(scale).add_(1e-8), value=-corrected)

    def auc(self, rows: Rows, day: int) -> float:
        """Returns the AUC on the rows of a day."""
        chosen = np.flatnonzero(rows.day == day)
        parts = [chosen[start : start + BATCH] for start in range(0, len(chosen), BATCH)]
        return _auc(
            rows.label[chosen], np.concatenate(list(self._pool.map(partial(self._scores, rows), parts)))
        )

    def _scores(self, rows: Rows, part: NDArray[np.int64]) -> NDArray[np.float32]:
        with self._torch.inference_mode():
            scores: NDArray[np.float32] = self._logits(*self._inputs(rows, part)).numpy()
        return scores

    def lists(self, rows: Rows, device_id: int) -> pl.DataFrame:
        """Returns the ten best items of each user, with the columns user_id, position, item_id and score.

        The user's and the item's vectors are looked up once. Each pair needs the bottom MLP and its dot products.
        """
        torch = self._torch
        offered = np.flatnonzero(rows.in_catalogue)
        starts = self._starts
        with torch.inference_mode():
            device = self._table[starts[5] + device_id]
            items = self._table[self._item_start : self._item_start + self._cardinalities[4]]
            pooled = self._f.embedding_bag(torch.from_numpy(rows.latest), items, mode="mean", padding_idx=0)
            vectors = self._f.embedding(
                torch.from_numpy(rows.user_rows) + starts[:2], self._table
            )  # (U, 2, E)
            users = torch.cat(
                [vectors, device.expand(len(vectors), 1, DIM), pooled.unsqueeze(1)], 1
            )  # (U, 4, E)
            of_items = self._f.embedding(
                torch.from_numpy(rows.item_rows[offered]) + starts[2:5], self._table
            )  # (I, 3, E)
        size = max(1, _BLOCK_PAIRS // len(offered))

        def best(start: int) -> tuple[Any, Any]:
            with torch.inference_mode():
                block = slice(start, start + size)
                bottom = self._bottom(rows.user_dense[block], rows.item_dense[offered])
                logits = self._pair_logits(bottom, users[block], of_items)
                logits[torch.from_numpy(rows.seen[block][:, offered])] = -math.inf
                top = logits.topk(K, dim=1)
                return top.values, top.indices

        scores, numbers = zip(*self._pool.map(best, range(0, len(users), size)), strict=True)
        number = torch.cat(numbers).numpy().ravel()
        return pl.DataFrame(
            {
                "user_id": rows.users.gather(np.repeat(np.arange(len(rows.users)), K)),
                "position": np.tile(np.arange(1, K + 1, dtype=np.int32), len(rows.users)),
                "item_id": rows.items.gather(offered[number]),
                "score": torch.cat(scores).sigmoid().numpy().ravel(),
            }
        )

    def _bottom(self, user_dense: NDArray[np.float32], item_dense: NDArray[np.float32]) -> Any:
        """Returns the outputs of the bottom MLP for all pairs of u users and I items, (u, I, E)."""
        w1, b1, w2, b2, *_ = self._dense
        of_users = self._torch.from_numpy(user_dense).unsqueeze(1) * w1[:, 0] + b1
        of_items = self._torch.from_numpy(item_dense).unsqueeze(1) * w1[:, 1]
        hidden = (of_items.unsqueeze(0) + of_users.unsqueeze(1)).relu_()  # (u, I, 64)
        return self._f.linear(hidden, w2, b2).relu_()

    def _pair_logits(self, bottom: Any, users: Any, items: Any) -> Any:
        """Returns logits (u, I) of bottom outputs (u, I, E), user vectors (u, 4, E) and item vectors (I, 3, E)."""
        torch = self._torch
        u, i = len(users), len(items)
        places = {"user": (1, 2, 6, 7), "item": (3, 4, 5)}  # among the eight vectors
        _, _, _, _, w3, b3, w4, b4, w5, b5 = self._dense
        weight = torch.zeros(8, 8, TOP[0])  # of the dot product of each pair of vectors
        weight[self._lower[0], self._lower[1]] = w3[:, DIM:].T
        weight = weight + weight.transpose(0, 1)
        users_weight = weight[list(places["user"])]
        items_weight = weight[list(places["item"])]
        same = torch.einsum("uae,ube->uab", users, users)
        user_part = torch.einsum("uab,abh->uh", same, users_weight[:, list(places["user"])]) / 2
        same = torch.einsum("iae,ibe->iab", items, items)
        item_part = torch.einsum("iab,abh->ih", same, items_weight[:, list(places["item"])]) / 2
        # Vectors of one side and their weights are constants for the other side: one matrix (E, H) per user and item.
        of_user = torch.einsum("uae,ah->ueh", users, users_weight[:, 0]) + w3[:, :DIM].T  # times bottom
        of_item = torch.einsum("iae,ah->ieh", items, items_weight[:, 0])
        cross = torch.einsum(
            "uae,abh->ubeh", users, users_weight[:, list(places["item"])]
        )  # times item vectors
        first = torch.matmul(items.flatten(1), cross.flatten(1, 2))  # (u, I, H)
        first += torch.matmul(bottom, of_user)
        first += torch.bmm(bottom.transpose(0, 1), of_item).transpose(0, 1)
        first += (user_part + b3).unsqueeze(1)
        first += item_part
        hidden = self._f.linear(first.relu_(), w4, b4).relu_()
        return self._f.linear(hidden, w5, b5).view(u, i)


def _rate_factor(step: int, steps: int) -> float:
    """Returns the factor of the learning rates at a step: linear warm-up, constant, quadratic decay to 0."""
    if step < 0.05 * steps:
        return min((step + 1) / (0.05 * steps), 1.0)
    return 1.0 if step < 0.6 * steps else ((steps - step) / (0.4 * steps)) ** 2


def _auc(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Returns the area under the ROC curve. Equal scores count half."""
    _, inverse = np.unique(scores, return_inverse=True)
    total, positives = np.bincount(inverse), np.bincount(inverse, weights=labels)
    negatives_below = np.cumsum(total - positives) - (total - positives)
    wins = (positives * (negatives_below + (total - positives) / 2)).sum()
    return float(wins / (positives.sum() * (total - positives).sum()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--log", type=Path, required=True, help="folder of the log")
    parser.add_argument("--run-date", type=date.fromisoformat, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for model and lists")
    parser.add_argument("--next", action="store_true", help="continue from the model in the folder --out")
    parser.add_argument("--only-rows", action="store_true", help="end after the rows are made")
    parser.add_argument("--threads", type=int, default=2, help="number of threads (default 2)")
    options = parser.parse_args(arguments)
    laps = Laps()
    model_file = options.out / "model.pickle"
    before = pickle.loads(model_file.read_bytes()) if options.next else None
    days = [(options.run_date - timedelta(back)).isoformat() for back in reversed(range(WINDOW))]
    clicks = read_clicks(options.log, days)
    laps.end("read")
    encoding = before["encoding"] if before else Encoding()
    of_days = range(TRAIN_DAYS - 1, WINDOW) if options.next else range(WINDOW)
    rows = make_rows(options.log, clicks, encoding, list(of_days))
    laps.end("rows")
    facts: dict[str, Any] = {"clicks": len(clicks), "rows": len(rows.label)}
    if not options.only_rows:
        model = ShopModel(encoding, before, options.threads)
        laps.end("import torch")
        model.train(rows, np.flatnonzero(rows.day < TRAIN_DAYS))
        laps.end("train")
        facts["auc_validation"], facts["auc"] = (model.auc(rows, day) for day in (TRAIN_DAYS, TRAIN_DAYS + 1))
        laps.end("AUC")
        device = encoding.values["device"].index(CONTEXT_DEVICE) + FIRST_ID
        lists = model.lists(rows, device)
        options.out.mkdir(parents=True, exist_ok=True)
        lists.write_parquet(options.out / f"recommendations-{options.run_date}.parquet", compression="zstd")
        laps.end("lists")
        model_file.write_bytes(pickle.dumps({**model.state(), "encoding": encoding}))
        laps.end("save")
        facts |= {"users": len(rows.users), "entries": len(lists)}
    print(json.dumps({**facts, "laps": laps.seconds}))


if __name__ == "__main__":
    gc.disable()  # Python need not look for garbage in a process that ends soon
    main()
