"""Scores batches of users against their candidates, and chooses the k best candidates of each user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from conf.errors import DataError
from scoring.inputs.requests import CANDIDATES, EXCLUDED, ListRequest
from scoring.model.predictor import Predictor
from scoring.ranking.candidate_items import Items, read_items
from scoring.ranking.pair_scorer import PairScorer
from scoring.ranking.pairs import CandidateLists, Indices, Lists, Pieces, blocks, side_of
from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys, split_keys, top_keys
from scoring.rules.apply_rules import RANKED, ItemRules, load_rules
from storage.feature_spec import USER_KEY
from training.models.factorization import Part

RECOMMENDATIONS = pa.schema(
    [
        ("user_id", pa.string()),
        ("position", pa.int32()),
        ("item_id", pa.string()),
        ("score", pa.float32()),
        ("reason", pa.string()),
    ]
)

_FIND_NAN = "look for NaN or infinite features of this user and item, or a diverged model; train again"
_LEAVE_FP16 = "; float16 has no numbers above 65,504: try --set score.precision=bf16"

# At least this many (user, item) cells are ranked together, even if a micro-batch of the model has fewer
# pairs.
_MIN_PLACES = 131_072
# Minimum number of users per pass over the items. The second number applies if each pass must compute the
# item parts again.
_LEAST_USERS, _LEAST_USERS_ANEW = 16, 128
# Maximum number of users per pass. It limits the memory for their rankings.
_MOST_USERS = 1_024


@dataclass(frozen=True)
class Recommender:
    """A loaded model and the candidate items, which makes the lists of users.

    Attributes:
        predictor: the loaded model.
        items: the candidate items, on the device of the predictor.
        k: maximum length of a list.
        pair_scorer: computes the probabilities of pairs of user and item.
        rules: the business rules; None if there are none.
    """

    predictor: Predictor
    items: Items
    k: int
    pair_scorer: PairScorer
    rules: ItemRules | None = None

    @classmethod
    def of(cls, predictor: Predictor, items: Items, k: int, rules: ItemRules | None = None) -> Recommender:
        """Returns a recommender for these items. The inputs of the items may be on any device."""
        items = Items(items.keys, items.side.to(predictor.device))
        return cls(predictor, items, k, PairScorer(predictor, items.side), rules)

    def recommend(self, users: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the k best candidates of each user, as batches with the schema RECOMMENDATIONS.

        The users keep their order. The items of a user are sorted by score descending, then by item key
        ascending. A user without candidates has no row in the result.

        Args:
            users: a batch with one row per user. The columns are user_key, candidates, excluded and the user
                features.

        Raises:
            DataError: a score is NaN, or candidates are out of range or repeated. The message names the user.
            InfrastructureError: the device has too little memory even for one pair.
        """
        predictor = self.predictor
        rows = pa.Table.from_batches([users])
        side = side_of(rows, predictor.spec, predictor.multi_hot, "user").to(predictor.device)
        lists = CandidateLists(
            users.column(USER_KEY), users.column(CANDIDATES), users.column(EXCLUDED), len(self.items.keys)
        )
        least = _LEAST_USERS if self.pair_scorer.keeps_items else _LEAST_USERS_ANEW
        for block in blocks(lists.most(), self._places, least, _MOST_USERS):
            parts = self.pair_scorer.user_parts(side.part(block))
            names = lists.users.slice(block.start, block.stop - block.start)
            keys = self._ranked(lists.of(block), parts, names)
            yield (
                self._best(keys, names)
                if self.rules is None
                else self._by_rules(self.rules, keys, parts, names)
            )

    @property
    def _places(self) -> int:
        """Returns the maximum number of cells (pairs of user and item) that are ranked together."""
        return max(self.predictor.micro_batch.rows, _MIN_PLACES)

    @property
    def _pool(self) -> int:
        """Returns how many of a user's best candidates are stored before the list is chosen from them."""
        whole = self.rules is not None and self.rules.need_whole_rankings
        return len(self.items.keys) if whole else self.k

    def _best(self, keys: Tensor, users: pa.Array) -> pa.RecordBatch:
        """Returns the lists without business rules: the first `k` candidates of each ranking.

        Args:
            keys: (U, W) ranking keys, as `_ranked` returns them.
            users: the keys of the U users.
        """
        best = keys[:, : self.k].cpu()
        filled = best != NO_CANDIDATE
        score, index = split_keys(best[filled])
        return self._rows(filled, score, index, pa.repeat(RANKED, len(index)), users)

    @torch.inference_mode()
    def _by_rules(self, rules: ItemRules, keys: Tensor, parts: Part, users: pa.Array) -> pa.RecordBatch:
        """Returns the lists that the business rules choose from the rankings.

        Args:
            rules: the business rules.
            keys: (U, W) ranking keys, as `_ranked` returns them.
            parts: the user parts that PairScorer.user_parts() returns.
            users: the keys of the U users.
        """
        valid = keys != NO_CANDIDATE
        scores, index = split_keys(keys)
        items = torch.where(valid, index, 0)
        chosen = rules.choose(items, valid, users.to_pylist(), self.k)
        filled, picked = chosen.filled, items.gather(1, chosen.positions)  # (U, K) each
        if rules.boost is None:
            shown = scores.gather(1, chosen.positions)
        else:  # the keys contain ranking scores, but a list shows the model's probabilities
            shown = self.pair_scorer.score_lists(
                parts, torch.arange(len(picked), device=picked.device), picked
            )
        reasons = pa.array(rules.reasons, pa.string()).take(pa.array(chosen.reasons[filled].cpu().numpy()))
        return self._rows(filled.cpu(), shown[filled].cpu(), picked[filled].cpu(), reasons, users)

    @torch.inference_mode()
    def _ranked(self, asked: Lists, parts: Part, names: pa.Array) -> Tensor:
        """Returns the ranking keys of the best candidates of some users, shape (U, W).

        Each row is sorted, best candidate first, and NO_CANDIDATE fills the end of the row. W is at most
        `_pool`. A ranking key combines ranking score and item index (scoring/ranking/top_k.py).

        Args:
            asked: the candidates of the users.
            parts: the user parts that PairScorer.user_parts() returns.
            names: the keys of the users, for error messages.
        """
        best = torch.full(
            (len(names), min(self._pool, len(self.items.keys))), NO_CANDIDATE, device=self.predictor.device
        )
        for users, keys in (
            (asked.everyone, self._of_all(asked, parts, names)),
            (asked.listed, self._of_lists(asked, parts, names)),
        ):
            for more_keys in keys:
                kept = torch.from_numpy(users).to(best.device)
                merged = torch.cat([best[kept], top_keys(more_keys, best.shape[1])], dim=1)
                best[kept] = top_keys(merged, best.shape[1])
        return best

    def _of_all(self, asked: Lists, parts: Part, names: pa.Array) -> Iterator[Tensor]:
        """Yields ranking keys (A, W) of the A users who are scored against all items.

        Each matrix has the keys of W consecutive items.
        """
        if not len(asked.everyone):
            return
        device = self.predictor.device
        every = torch.from_numpy(asked.everyone).to(device)
        some_parts = tuple(part.index_select(0, every) for part in parts)
        width = max(self._places // len(every), 1)
        for start in range(0, len(self.items.keys), width):
            items = slice(start, min(start + width, len(self.items.keys)))
            index = torch.arange(items.start, items.stop, device=device)
            candidate = self._not_excluded(asked, items)
            yield self._keys(
                self.pair_scorer.score_consecutive(some_parts, items), index, candidate, asked.everyone, names
            )

    def _not_excluded(self, asked: Lists, items: slice) -> Tensor | None:
        """Returns a matrix (A, W) of bools: which of W consecutive items are candidates of each of A users.

        Returns None if all these items are candidates of all these users.
        """
        user, item = asked.excluded
        in_range = (item >= items.start) & (item < items.stop)
        if not in_range.any():
            return None
        kept = np.ones((len(asked.everyone), items.stop - items.start), dtype=bool)
        kept[user[in_range], item[in_range] - items.start] = False
        return torch.from_numpy(kept).to(self.predictor.device)

    def _of_lists(self, asked: Lists, parts: Part, names: pa.Array) -> Iterator[Tensor]:
        """Yields ranking keys (L, W) of the L users who are scored against a list of items.

        Each matrix has the keys of a range of positions in the lists. NO_CANDIDATE fills the cells without an
        item.
        """
        device, longest = self.predictor.device, int(asked.lengths.max(initial=0))
        starts = np.cumsum(asked.lengths) - asked.lengths
        width = max(self._places // max(len(asked.listed), 1), 1)
        for column in range(0, longest, width):
            lengths = (asked.lengths - column).clip(0, width)
            pieces = Pieces.of(lengths, starts + column, asked.items)
            which = torch.from_numpy(asked.listed[pieces.list]).to(device)
            items, filled = (torch.from_numpy(array).to(device) for array in (pieces.items, pieces.filled))
            scores = self.pair_scorer.score_lists(parts, which, items)
            keys = self._keys(scores, items, filled, asked.listed[pieces.list], names)
            laid_out = torch.full(
                (len(lengths), int(pieces.place.max()) + 1, keys.shape[1]), NO_CANDIDATE, device=device
            )
            laid_out[torch.from_numpy(pieces.list).to(device), torch.from_numpy(pieces.place).to(device)] = (
                keys
            )
            yield laid_out.flatten(1)

    def _keys(
        self, scores: Tensor, items: Tensor, candidate: Tensor | None, users: Indices, names: pa.Array
    ) -> Tensor:
        """Returns the ranking keys of R users and W items, shape (R, W).

        The key of an item that is not a candidate of the user is NO_CANDIDATE.

        Args:
            scores: (R, W) probabilities.
            items: (W,) item indices that all users share, or (R, W) item indices.
            candidate: (R, W) bool, whether the item is a candidate; None if all are candidates.
            users: (R,) the user of each row, as an index into `names`.
            names: the keys of the users.

        Raises:
            DataError: the score of a candidate is NaN.
        """
        wrong = scores.isnan() if candidate is None else scores.isnan() & candidate
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            item = self.items.keys[int(items.expand(scores.shape)[row, column])]
            raise DataError(
                f"model {self.predictor.version} scores user {names[int(users[row])]} "
                f"with item {item} as NaN "
                f"({int(wrong.sum())} of the {wrong.numel()} pairs scored together are NaN)",
                _FIND_NAN + (_LEAVE_FP16 if self.predictor.precision == "fp16" else ""),
            )
        ranked_by = scores if self.rules is None else self.rules.ranking_scores(scores, items)
        keys = ranking_keys(ranked_by, items)
        return keys if candidate is None else keys.masked_fill_(~candidate, NO_CANDIDATE)

    def _rows(
        self, filled: Tensor, score: Tensor, index: Tensor, reasons: pa.Array, users: pa.Array
    ) -> pa.RecordBatch:
        """Returns list entries as a batch with the schema RECOMMENDATIONS.

        Args:
            filled: (U, K) bool. There is one list entry for each true cell, in row order.
            score: the score of each list entry.
            index: the item index of each list entry.
            reasons: the reason of each list entry.
            users: the keys of the U users.
        """
        row, position = filled.nonzero(as_tuple=True)
        return pa.RecordBatch.from_arrays(
            [
                users.take(pa.array(row.numpy())),
                pa.array((position + 1).int().numpy()),
                self.items.keys.take(pa.array(index.numpy())),
                pa.array(score.numpy()),
                reasons,
            ],
            schema=RECOMMENDATIONS,
        )


def load_recommender(request: ListRequest, predictor: Predictor) -> Recommender:
    """Reads the items and the tables of the business rules, and puts them on the predictor's device.

    Args:
        request: names the files of the items and the tables of the rules, and has the number k.
        predictor: the loaded model `request.model`.

    Raises:
        ConfigError, DataError: the errors that `read_items` and `load_rules` raise.
    """
    items = read_items(request.item_files, predictor, dict(request.context))
    rules = load_rules(request.rules, items.keys, predictor.device) if request.rules else None
    return Recommender.of(predictor, items, request.k, rules)
