"""A nightly run on MovieLens 100k without Nightrank: one process with pandas, NumPy and torch.

    python -m benchmarks.peers.plain_movielens --data FOLDER --out FOLDER [--epochs N] [--threads N]

The script computes what `nightly --retrain` computes with conf/datasets/movielens.yaml, as a data scientist would
write it:

1. It reads ratings, users and films. Ratings of 4 and 5 are positive. The latest positive row of each user is the
   test row, the one before it the validation row.
2. It makes the history of each positive train row: the 50 films that the user liked before, the latest first.
3. It trains a SASRec with two blocks of one head and vectors of 64 numbers. Each positive row is one example with its own
   history and 20 drawn films that the user did not like; the loss is the softmax over these 21 films. The features of
   users and films are added to their vectors. Steps, learning rates and their schedule are those of the configuration.
4. It scores all films for all users, without the films that the user rated before the test row, writes the ten best
   as Parquet, and measures HR@10 and NDCG@10 of the test rows of users with train rows.

It has no manifests, quarantine, data report, gate or registry, measures no model during the training, writes no
features, and starts from the beginning after a failure. The last line of standard output is a JSON object.

Notation: S histories, L = 50 places, E = 64 numbers per vector, U users, I films.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

POSITIVE, HISTORY, K = 4.0, 50, 10
DIM, BLOCKS, DROPOUT, DEVIATION = 64, 2, 0.2, 0.02
BATCH_ROWS, NEGATIVES, LEARNING_RATE, EPOCHS = 384, 20, 1e-3, 8
TRAIN, VALIDATION, TEST = range(3)
USER_COLUMNS = ("gender", "occupation")
_ATTEMPTS = 8
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ratings:
    """The rows of the log, ordered by user, time and line.

    Attributes:
        user, item: (n,) numbers of users and films, from 0.
        positive: (n,) bool.
        split: (n,) TRAIN, VALIDATION or TEST.
        users, items: the keys.
    """

    user: Ints
    item: Ints
    positive: NDArray[np.bool_]
    split: Ints
    users: NDArray[np.str_]
    items: NDArray[np.str_]


@dataclass(frozen=True)
class Features:
    """The features of users and films.

    Attributes:
        age: (U, 1) float32, normalized.
        user_ids: (U, 2) ids of USER_COLUMNS.
        year: (I,) ids.
        genres: (I, G) float32, 1 / number of genres for each genre of a film.
        sizes: number of ids of each user column and of the year.
    """

    age: Tensor
    user_ids: Tensor
    year: Tensor
    genres: Tensor
    sizes: tuple[int, ...]


def read_ratings(folder: Path) -> Ratings:
    """Reads the log and divides it into splits."""
    raw = _read(folder / "ml-100k.inter")
    times = raw["timestamp"].astype(float)
    users, user = np.unique(raw["user_id"].to_numpy(str), return_inverse=True)
    items, item = np.unique(raw["item_id"].to_numpy(str), return_inverse=True)
    order = np.lexsort((times.to_numpy(), user))  # stable: equal times are in the order of lines
    user, item = user[order], item[order]
    positive = (raw["rating"].astype(float) >= POSITIVE).to_numpy()[order]
    return Ratings(user, item, positive, split_of(user, positive), users, items)


def split_of(user: Ints, positive: NDArray[np.bool_]) -> Ints:
    """Returns the split of rows that are ordered by user and time (leave-last-out).

    A user's last positive row and the rows after it are test rows. The second last positive row and the rows between
    both are validation rows.
    """
    before = np.cumsum(positive)
    totals = np.bincount(user, positive).astype(np.int64)
    ends = np.cumsum(totals)
    later = ends[user] - before  # positive rows of the user after this row
    split = np.full(len(user), TRAIN)
    split[(later == 0) & (totals[user] > 0)] = TEST
    split[(later == 1) & (totals[user] > 1)] = VALIDATION
    return split


def histories_before(rows: Ratings, chosen: Ints) -> Ints:
    """Returns the films liked before each of these rows, (rows, L), the latest first; -1 at the end of a shorter history."""
    liked = np.flatnonzero(rows.positive)
    place = np.searchsorted(liked, chosen)[:, None] - 1 - np.arange(HISTORY)
    inside = place >= 0
    place[~inside] = 0
    found = liked[place]
    same = inside & (rows.user[found] == rows.user[chosen][:, None])
    return np.where(same, rows.item[found], -1)


def read_features(folder: Path, rows: Ratings) -> Features:
    """Reads the tables of users and films. Every value of the train rows gets an id; 0 is for all others."""
    users = _read(folder / "ml-100k.user").set_index("user_id").reindex(rows.users)
    items = _read(folder / "ml-100k.item").set_index("item_id").reindex(rows.items)
    train = rows.split == TRAIN
    age = users["age"].astype(float).fillna(30).to_numpy()
    of_rows = age[rows.user[train]]
    ids, sizes = [], []
    for values, of_train in (
        *((users[column], rows.user[train]) for column in USER_COLUMNS),
        (items["release_year"], rows.item[train]),
    ):
        known = pd.Index(values.to_numpy()[np.unique(of_train)]).dropna().unique()
        ids.append(torch.from_numpy(known.get_indexer(pd.Index(values)) + 1))
        sizes.append(len(known) + 1)
    genres = items["class"].fillna("").str.get_dummies(" ").to_numpy(np.float32)
    genres /= np.maximum(genres.sum(1, keepdims=True), 1)
    normalized = ((age - of_rows.mean()) / of_rows.std()).astype(np.float32)
    return Features(
        torch.from_numpy(normalized)[:, None],
        torch.stack(ids[:2], 1),
        ids[2],
        torch.from_numpy(genres),
        (*sizes,),
    )


def _read(path: Path) -> pd.DataFrame:
    table = pd.read_csv(path, sep="\t", dtype=str)
    table.columns = pd.Index([name.split(":")[0] for name in table.columns])
    return table


class Block(nn.Module):
    """Self-attention to older places, then an MLP per place (Kang and McAuley 2018, section III-B)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.query, self.key, self.value = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.inner, self.outer = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, values: Tensor, visible: Tensor, outputs: int) -> Tensor:
        """Returns the outputs of the first places (S, outputs, E) of values (S, L, E); visible is (S, L, L)."""
        needed = values[:, :outputs]
        attended = functional.scaled_dot_product_attention(
            self.query(self.attention_norm(needed)),
            self.key(values),
            self.value(values),
            attn_mask=visible[:, :outputs],
        )
        middle = needed + self.dropout(attended)
        return middle + self.dropout(self.outer(functional.relu(self.inner(self.mlp_norm(middle)))))


class SASRec(nn.Module):
    """The model. The number 0 of a history is the padding, and the film i has the number i + 1."""

    def __init__(self, features: Features, items: int) -> None:
        super().__init__()
        self._features = features
        self.items = _vectors(items + 1)
        self.places, self.no_history, self.age = _vectors(HISTORY), _vectors(1), _vectors(1)
        self.of_users = nn.ParameterList(_vectors(size) for size in features.sizes[:2])
        self.years, self.genres = _vectors(features.sizes[2]), _vectors(features.genres.shape[1])
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.dropout = nn.LayerNorm(DIM), nn.Dropout(DROPOUT)

    def user_vectors(self, users: Tensor, histories: Tensor) -> Tensor:
        """Returns vectors (S, E) of users (S,) with histories (S, L)."""
        longest = max(int((histories > 0).sum(1).max()), 1)
        histories = histories[:, :longest]
        is_item = histories > 0
        visible = is_item.unsqueeze(1) & torch.ones(longest, longest, dtype=torch.bool).triu()
        visible = visible | torch.eye(longest, dtype=torch.bool)
        values = (
            functional.embedding(histories, self.items) * is_item.unsqueeze(2) * math.sqrt(DIM)
            + self.places[:longest]
        )
        values = self.dropout(values)
        for number, block in enumerate(self.blocks, start=1):
            values = block(values, visible, 1 if number == BLOCKS else longest)
        encoded = torch.where(is_item[:, :1], self.norm(values[:, 0]), self.no_history)
        ids = self._features.user_ids[users]
        of_ids = sum(table[ids[:, place]] for place, table in enumerate(self.of_users))
        return encoded + of_ids + self._features.age[users] * self.age

    def item_vectors(self) -> Tensor:
        """Returns the vectors of all films, (I, E)."""
        return self.items[1:] + self.years[self._features.year] + self._features.genres @ self.genres


def _vectors(count: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(count, DIM).normal_(std=DEVIATION))


class Adam:
    """Adam. torch.optim is not used, because its first step imports torch's compiler."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self._parameters]
        self._steps = 0

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        self._steps += 1
        corrected, scale = rate / (1 - _BETA1**self._steps), math.sqrt(1 - _BETA2**self._steps)
        for parameter, gradient, (first, second) in zip(
            self._parameters, gradients, self._moments, strict=True
        ):
            first.lerp_(gradient, 1 - _BETA1)
            second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
            parameter.addcdiv_(first, second.sqrt().div_(scale).add_(_EPSILON), value=-corrected)


def train(model: SASRec, rows: Ratings, epochs: int, threads: int, seed: int = 0) -> None:
    """Trains the model on the train rows. A step has BATCH_ROWS rows, of which the positive ones are used.

    Each thread computes a part of a batch.
    """
    random = np.random.default_rng(seed)
    train_rows = np.flatnonzero(rows.split == TRAIN)
    histories = torch.from_numpy(histories_before(rows, train_rows) + 1)
    liked = np.zeros((len(rows.users), len(rows.items)), bool)
    chosen = train_rows[rows.positive[train_rows]]
    liked[rows.user[chosen], rows.item[chosen]] = True
    offered = np.unique(rows.item[train_rows])
    optimizer, steps, step = Adam(model.parameters()), epochs * -(-len(train_rows) // BATCH_ROWS), 0
    model.train()
    pool = ThreadPoolExecutor(threads)
    for _ in range(epochs):
        order = random.permutation(len(train_rows))
        for start in range(0, len(order), BATCH_ROWS):
            batch = order[start : start + BATCH_ROWS]
            batch = batch[rows.positive[train_rows[batch]]]
            user, item = rows.user[train_rows[batch]], rows.item[train_rows[batch]]
            drawn = random.choice(offered, (len(batch), NEGATIVES))
            for _ in range(_ATTEMPTS):
                again = liked[user[:, None], drawn]
                drawn[again] = random.choice(offered, int(again.sum()))
            candidates = torch.from_numpy(np.concatenate([item[:, None], drawn], 1))  # (S, 21)
            parts = zip(
                torch.from_numpy(user).chunk(threads),
                histories[batch].chunk(threads),
                candidates.chunk(threads),
                strict=True,
            )
            of_parts = pool.map(partial(_gradients, model, len(batch)), parts)
            gradients = [sum(of_parameter) for of_parameter in zip(*of_parts, strict=True)]
            optimizer.step(gradients, LEARNING_RATE * _rate_factor(step, steps))
            step += 1


def _gradients(model: SASRec, batch_rows: int, part: tuple[Tensor, Tensor, Tensor]) -> Sequence[Tensor]:
    """Returns the gradients of the loss of a part of a batch: users, histories and candidates (S, 21)."""
    users, histories, candidates = part
    vectors = functional.embedding(candidates, model.item_vectors())
    logits = torch.einsum("se,sne->sn", model.user_vectors(users, histories), vectors)
    loss = (logits.logsumexp(1) - logits[:, 0]).sum() / batch_rows
    return torch.autograd.grad(loss, list(model.parameters()))


def _rate_factor(step: int, steps: int) -> float:
    """Returns the factor of the learning rates at a step: linear warm-up, constant, quadratic decay to 0."""
    if step < 0.05 * steps:
        return min((step + 1) / (0.05 * steps), 1.0)
    return 1.0 if step < 0.6 * steps else ((steps - step) / (0.4 * steps)) ** 2


@torch.no_grad()
def make_lists(model: SASRec, rows: Ratings) -> tuple[Ints, NDArray[np.float32]]:
    """Returns the ten best films of each user and their scores, (U, K) each.

    The histories end before the test rows. Films that the user rated before them are left out.
    """
    model.eval()
    before = rows.split != TEST
    liked = np.flatnonzero(rows.positive & before)
    histories = np.full((len(rows.users), HISTORY), -1)
    numbers = np.arange(len(liked))[::-1]
    ends = np.searchsorted(rows.user[liked], np.arange(len(rows.users)), side="right")
    position = ends[rows.user[liked]] - 1 - numbers[::-1]  # 0 for the latest film
    recent = position < HISTORY
    histories[rows.user[liked[recent]], position[recent]] = rows.item[liked[recent]]
    rated = torch.zeros(len(rows.users), len(rows.items), dtype=torch.bool)
    rated[torch.from_numpy(rows.user[before]), torch.from_numpy(rows.item[before])] = True
    users = model.user_vectors(torch.arange(len(rows.users)), torch.from_numpy(histories + 1))
    scores = (users @ model.item_vectors().T).masked_fill(rated, -math.inf)
    best = scores.topk(K, dim=1)
    return best.indices.numpy(), best.values.numpy()


def measures(rows: Ratings, lists: Ints) -> dict[str, Any]:
    """Returns HR@10 and NDCG@10 of the positive test rows of users with train rows."""
    warm = np.zeros(len(rows.users), bool)
    warm[rows.user[rows.split == TRAIN]] = True
    tests = np.flatnonzero((rows.split == TEST) & rows.positive & warm[rows.user])
    hits = lists[rows.user[tests]] == rows.item[tests][:, None]
    gains = (hits / np.log2(np.arange(K) + 2)).sum(1)
    return {"users": len(tests), "hit_rate": float(hits.any(1).mean()), "ndcg": float(gains.mean())}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the files ml-100k.*")
    parser.add_argument("--out", type=Path, required=True, help="folder for model and lists")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"epochs (default {EPOCHS})")
    parser.add_argument("--threads", type=int, default=2, help="number of threads (default 2)")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of an operator; each thread of the training computes a part of a batch
    laps, last = {}, time.perf_counter()

    def end(part: str) -> None:
        nonlocal last
        now = time.perf_counter()
        laps[part], last = round(now - last, 3), now

    rows = read_ratings(options.data)
    features = read_features(options.data, rows)
    end("read")
    model = SASRec(features, len(rows.items))
    train(model, rows, options.epochs, options.threads)
    end("train")
    lists, scores = make_lists(model, rows)
    options.out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(
        {
            "user_id": rows.users.repeat(K),
            "position": np.tile(np.arange(1, K + 1, dtype=np.int32), len(rows.users)),
            "item_id": rows.items[lists.ravel()],
            "score": scores.ravel(),
        }
    ).to_parquet(options.out / "recommendations.parquet", compression="zstd", index=False)
    torch.save(model.state_dict(), options.out / "model.pt")
    end("lists")
    facts = {"rows": len(rows.user), "train_rows": int((rows.split == TRAIN).sum()), **measures(rows, lists)}
    print(json.dumps({**facts, "laps": laps}))


if __name__ == "__main__":
    gc.disable()  # Python need not look for garbage in a process that ends soon
    main()
