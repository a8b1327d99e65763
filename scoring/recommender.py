"""Scores batches of users against their candidates and keeps the k best of each: one worker process's part of a night."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from conf import storage
from conf.errors import DataError
from conf.feature_spec import ITEM_KEY, USER_KEY
from scoring.contract import CANDIDATES, EXCLUDED, ITEM_INDEX, Encoded, ListRequest
from scoring.pairs import Block, CandidateLists, Side, blocks, context_side, side_of
from scoring.predictor import Predictor, predictor_of_process
from scoring.rules.choose import RANKED, ItemRules, load_rules
from scoring.topk import NO_CANDIDATE, ranking_keys, split_keys, top_keys

RECOMMENDATIONS = pa.schema(
    [
        ("user_id", pa.string()),
        ("position", pa.int32()),
        ("item_id", pa.string()),
        ("score", pa.float32()),
        ("reason", pa.string()),
    ]
)

# Keys of at least this many places are ranked together, however few rows go through the model at once.
_MIN_BLOCK_PLACES = 131_072


@dataclass(frozen=True)
class Items:
    """The items on the device: `keys` (N,) strings by item index, `side` with the context features filled in."""

    keys: pa.Array
    side: Side


@dataclass(frozen=True)
class Recommender:
    """A predictor with the items beside it, and the business rules after ranking."""

    predictor: Predictor
    items: Items
    k: int
    rules: ItemRules | None = None

    def recommend(self, users: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The k best candidates of each user: batches of RECOMMENDATIONS in the order of the users, then by position.

        Order within a user: score descending, then item key ascending; where there are rules, as they say
        (scoring/rules). A user without candidates gets no row.

        Args:
            users: user_key, candidates, excluded and the user features; one row a user.

        Raises:
            DataError: a score is NaN, or candidates are out of range or repeated; names the user.
        """
        predictor = self.predictor
        rows = pa.Table.from_batches([users])
        side = side_of(rows, predictor.spec, predictor.multi_hot, "user").to(predictor.device)
        lists = CandidateLists(
            users.column(USER_KEY), users.column(CANDIDATES), users.column(EXCLUDED), len(self.items.keys)
        )
        for block in blocks(lists, max(self.predictor.step_rows, _MIN_BLOCK_PLACES)):
            if len(block.item):
                yield self._best(block, side, lists.users)

    @torch.inference_mode()
    def _best(self, block: Block, side: Side, users: pa.Array) -> pa.RecordBatch:
        device = self.predictor.device
        user, item = (
            torch.from_numpy(block.user).to(device),
            torch.from_numpy(block.item).to(device),
        )  # (P,) each
        scores = self._scores(user, item, side, users)
        matrix = torch.full(
            (len(block.lengths), int(block.lengths.max())), NO_CANDIDATE, device=device
        )  # (U, W)
        cell = (user - block.first_user, torch.from_numpy(block.place).to(device))
        if self.rules is not None:
            matrix[cell] = ranking_keys(self.rules.ranking_scores(scores, item), item)
            by_place = torch.zeros(matrix.shape, device=device)  # (U, W)
            by_place[cell] = scores
            return self._by_rules(self.rules, matrix, by_place, block, users)
        matrix[cell] = ranking_keys(scores, item)
        best = top_keys(matrix, self.k).cpu()  # (U, min(k, W))
        filled = best != NO_CANDIDATE
        self._require_distinct(best, filled, block.first_user, users)
        score, index = split_keys(best[filled])
        return self._lists(filled, score, index, pa.repeat(RANKED, len(index)), block, users)

    def _by_rules(
        self, rules: ItemRules, keys: Tensor, scores: Tensor, block: Block, users: pa.Array
    ) -> pa.RecordBatch:
        """The lists that the rules choose from rankings: `keys` and the model's `scores`, (U, W) each."""
        if rules.need_whole_rankings:
            ranked, order = keys.sort(dim=1, descending=True)
        else:
            ranked, order = keys.topk(min(self.k, keys.shape[1]), dim=1)
        valid = ranked != NO_CANDIDATE
        self._require_distinct(ranked, valid, block.first_user, users)
        items = torch.where(valid, split_keys(ranked)[1], 0)
        own = users.slice(block.first_user, len(block.lengths)).to_pylist()
        chosen = rules.choose(items, valid, own, self.k)
        filled = chosen.filled
        score = scores.gather(1, order.gather(1, chosen.places))[filled].cpu()
        index = items.gather(1, chosen.places)[filled].cpu()
        reasons = pa.array(rules.reasons, pa.string()).take(pa.array(chosen.reasons[filled].cpu().numpy()))
        return self._lists(filled.cpu(), score, index, reasons, block, users)

    def _lists(
        self, filled: Tensor, score: Tensor, index: Tensor, reasons: pa.Array, block: Block, users: pa.Array
    ) -> pa.RecordBatch:
        """RECOMMENDATIONS of the filled (U, K) places, row after row; score, index and reasons are one a filled place."""
        row, position = filled.nonzero(as_tuple=True)
        return pa.RecordBatch.from_arrays(
            [
                users.take(pa.array(row.numpy() + block.first_user)),
                pa.array((position + 1).int().numpy()),
                self.items.keys.take(pa.array(index.numpy())),
                pa.array(score.numpy()),
                reasons,
            ],
            schema=RECOMMENDATIONS,
        )

    def _scores(self, user: Tensor, item: Tensor, side: Side, users: pa.Array) -> Tensor:
        """(P,) probabilities; only `step_rows` pairs at a time have their features assembled."""
        scores = torch.empty(len(item), dtype=torch.float32, device=self.predictor.device)
        for start in range(0, len(item), self.predictor.step_rows):
            step = slice(start, start + self.predictor.step_rows)
            pairs = side.rows(user[step]).plus(self.items.side.rows(item[step]))
            scores[step] = self.predictor.probabilities(pairs.dense, pairs.categorical)
        wrong = scores.isnan()
        if wrong.any():
            first = int(wrong.nonzero()[0])
            raise DataError(
                f"model {self.predictor.version} scores user {users[int(user[first])]} with item "
                f"{self.items.keys[int(item[first])]} as NaN ({int(wrong.sum())} of {len(scores)} pairs at once)",
                "look for NaN or infinite features of this user and item, or a diverged model; train again",
            )
        return scores

    def _require_distinct(self, best: Tensor, filled: Tensor, first_user: int, users: pa.Array) -> None:
        repeated = (best[:, 1:] == best[:, :-1]) & filled[:, 1:]
        if repeated.any():
            user = users[first_user + int(repeated.nonzero()[0, 0])]
            raise DataError(f"the candidates of user {user} hold an item twice", "run build_candidates again")


@lru_cache(maxsize=1)
def recommender_of_process(request: ListRequest, gpu: int | None, threads: int) -> Recommender:
    """The recommender of this process, made when the first batch asks for it: model and items are read once."""
    predictor = predictor_of_process(request.model, gpu, threads)
    items = read_items(request.item_files, predictor, dict(request.context))
    rules = load_rules(request.rules, items.keys, predictor.device) if request.rules else None
    return Recommender(predictor, Items(items.keys, items.side.to(predictor.device)), request.k, rules)


def read_items(files: Sequence[str], predictor: Predictor, context: Mapping[str, Encoded]) -> Items:
    """The candidate items, by index, on the CPU, as the predictor's model takes them.

    Raises:
        DataError: their indices are not 0, 1, 2, …
        ConfigError: the context does not fit the spec.
    """
    spec, multi_hot = predictor.spec, predictor.multi_hot
    columns = [ITEM_INDEX, ITEM_KEY, *(each.name for each in spec.scoped("item"))]
    table = pa.concat_tables(_read_parquet(path, columns) for path in files).combine_chunks()
    index = table.column(ITEM_INDEX).to_numpy()
    if not np.array_equal(index, np.arange(len(index))):
        raise DataError(
            f"{files[0]}: item_index does not count from 0 in steps of 1", "run build_candidates again"
        )
    keys = pa.array(table.column(ITEM_KEY).to_pylist(), pa.string())
    return Items(keys, side_of(table, spec, multi_hot, "item").plus(context_side(context, spec, multi_hot)))


def _read_parquet(path: str, columns: list[str]) -> pa.Table:
    files, inner = storage.filesystem(path)
    return pq.read_table(inner, filesystem=files, columns=columns, partitioning=None)
