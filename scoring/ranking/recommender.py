"""Scores batches of users against their candidates, and chooses the k best candidates of each user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoring.inputs.requests import CANDIDATES, EXCLUDED, SOURCE_SCORES, ListRequest
from scoring.model.predictor import Predictor
from scoring.ranking.blend import Blend, SourceScores
from scoring.ranking.candidate_items import Items, read_items
from scoring.ranking.list_rows import list_rows
from scoring.ranking.list_scorer import ListScorer
from scoring.ranking.pair_scorer import PairScorer
from scoring.ranking.pairs import CandidateLists, Indices, Lists, blocks, side_of
from scoring.ranking.pieces import Pieces
from scoring.ranking.top_k import NO_CANDIDATE, split_keys, top_keys
from scoring.rules.apply_rules import ItemRules, load_rules
from scoring.rules.request import RANKED
from storage.feature_spec import USER_KEY
from training.models.factorization import Part

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
        list_scorer: computes the scores of pairs of user and item, by the model or by a blend.
        rules: the business rules; None if there are none.
    """

    predictor: Predictor
    items: Items
    k: int
    list_scorer: ListScorer
    rules: ItemRules | None = None

    @classmethod
    def of(
        cls,
        predictor: Predictor,
        items: Items,
        k: int,
        rules: ItemRules | None = None,
        blend: Blend | None = None,
    ) -> Recommender:
        """Returns a recommender for these items. The inputs of the items may be on any device."""
        items = Items(items.keys, items.side.to(predictor.device))
        scorer = ListScorer(predictor, items, PairScorer(predictor, items.side), rules, blend)
        return cls(predictor, items, k, scorer, rules)

    def recommend(self, users: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the k best candidates of each user, as batches with the schema RECOMMENDATIONS.

        The users keep their order. The items of a user are sorted by score descending, then by item key
        ascending. A user without candidates has no row in the result.

        Args:
            users: a batch with one row per user. The columns are user_key, candidates, excluded and the user
                features, and also source_scores if there is a blend.

        Raises:
            DataError: a score is NaN, or candidates are out of range or repeated. The message names the user.
            InfrastructureError: the device has too little memory even for one pair.
        """
        predictor = self.predictor
        rows = pa.Table.from_batches([users])
        side = side_of(rows, predictor.spec, predictor.multi_hot, "user").to(predictor.device)
        keys, candidates = users.column(USER_KEY), users.column(CANDIDATES)
        sources = None
        if self.list_scorer.blend is not None:
            sources = SourceScores.of(
                keys, candidates, users.column(SOURCE_SCORES), len(self.list_scorer.blend.weights)
            )
        lists = CandidateLists(
            keys,
            candidates,
            users.column(EXCLUDED),
            len(self.items.keys),
            keep_lists=sources is not None,
        )
        least = _LEAST_USERS if self.list_scorer.pair_scorer.keeps_items else _LEAST_USERS_ANEW
        for block in blocks(lists.most(), self._places, least, _MOST_USERS):
            parts = self.list_scorer.pair_scorer.user_parts(side.part(block))
            names = lists.users.slice(block.start, block.stop - block.start)
            scores = None if sources is None else torch.from_numpy(sources.block(block))
            ranked = self._ranked(lists.of(block), parts, names, scores)
            if self.rules is None:
                yield self._best(ranked, names)
            else:
                of_items = None if sources is None else partial(sources.of_items, block)
                yield self._by_rules(self.rules, ranked, parts, names, of_items)

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
        return list_rows(
            filled, self.list_scorer.shown(score), self._keys_of(index), pa.repeat(RANKED, len(index)), users
        )

    @torch.inference_mode()
    def _by_rules(
        self,
        rules: ItemRules,
        keys: Tensor,
        parts: Part,
        users: pa.Array,
        of_items: Callable[[Indices], NDArray[np.float32]] | None,
    ) -> pa.RecordBatch:
        """Returns the lists that the business rules choose from the rankings.

        Args:
            rules: the business rules.
            keys: (U, W) ranking keys, as `_ranked` returns them.
            parts: the user parts that PairScorer.user_parts() returns.
            users: the keys of the U users.
            of_items: returns the scores (U, K, S) of the sources for candidates (U, K); None without a blend.
        """
        valid = keys != NO_CANDIDATE
        scores, index = split_keys(keys)
        items = torch.where(valid, index, 0)
        chosen = rules.choose(items, valid, users.to_pylist(), self.k)
        filled, picked = chosen.filled, items.gather(1, chosen.positions)  # (U, K) each
        if not rules.moves_items:
            shown = self.list_scorer.shown(scores.gather(1, chosen.positions))
        else:  # the keys contain ranking scores, but a list shows the scores before the rules
            of_sources = None
            if of_items is not None:
                of_sources = torch.from_numpy(of_items(picked.cpu().numpy()))
            which = torch.arange(len(picked), device=picked.device)
            shown = self.list_scorer.scores(parts, which, picked, of_sources)
        reasons = pa.array(rules.reasons, pa.string()).take(pa.array(chosen.reasons[filled].cpu().numpy()))
        return list_rows(
            filled.cpu(), shown[filled].cpu(), self._keys_of(picked[filled].cpu()), reasons, users
        )

    @torch.inference_mode()
    def _ranked(self, asked: Lists, parts: Part, names: pa.Array, source_scores: Tensor | None) -> Tensor:
        """Returns the ranking keys of the best candidates of some users, shape (U, W).

        Each row is sorted, best candidate first, and NO_CANDIDATE fills the end of the row. W is at most
        `_pool`. A ranking key combines ranking score and item index (scoring/ranking/top_k.py).

        Args:
            asked: the candidates of the users.
            parts: the user parts that PairScorer.user_parts() returns.
            names: the keys of the users, for error messages.
            source_scores: (Σ lengths, S) the scores of the sources, in the order of `asked.items`; None
                without a blend.
        """
        best = torch.full(
            (len(names), min(self._pool, len(self.items.keys))), NO_CANDIDATE, device=self.predictor.device
        )
        for users, keys in (
            (asked.everyone, self._of_all(asked, parts, names)),
            (asked.listed, self._of_lists(asked, parts, names, source_scores)),
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
            yield self.list_scorer.keys(
                self.list_scorer.pair_scorer.score_consecutive(some_parts, items),
                index,
                candidate,
                asked.everyone,
                names,
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

    def _of_lists(
        self, asked: Lists, parts: Part, names: pa.Array, source_scores: Tensor | None
    ) -> Iterator[Tensor]:
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
            of_sources = None if source_scores is None else source_scores[torch.from_numpy(pieces.index)]
            scores = self.list_scorer.scores(parts, which, items, of_sources)
            keys = self.list_scorer.keys(scores, items, filled, asked.listed[pieces.list], names)
            laid_out = torch.full(
                (len(lengths), int(pieces.place.max()) + 1, keys.shape[1]), NO_CANDIDATE, device=device
            )
            laid_out[torch.from_numpy(pieces.list).to(device), torch.from_numpy(pieces.place).to(device)] = (
                keys
            )
            yield laid_out.flatten(1)

    def _keys_of(self, index: Tensor) -> pa.Array:
        """Returns the keys of items."""
        return self.items.keys.take(pa.array(index.numpy()))


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
    blend = Blend.of(request.blend, predictor.device) if request.blend else None
    return Recommender.of(predictor, items, request.k, rules, blend)
