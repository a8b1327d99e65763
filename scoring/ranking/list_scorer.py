"""Computes the scores of candidates, by a model or by a blend, and their ranking keys."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from torch import Tensor

from conf.errors import DataError
from scoring.model.predictor import Predictor
from scoring.ranking.blend import Blend
from scoring.ranking.candidate_items import Items
from scoring.ranking.pair_scorer import PairScorer
from scoring.ranking.pairs import Indices
from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys
from scoring.rules.apply_rules import ItemRules
from training.models.factorization import Part

_FIND_NAN = "look for NaN or infinite features of this user and item, or a diverged model; train again"
_LEAVE_FP16 = "; float16 has no numbers above 65,504: try --set score.precision=bf16"


@dataclass(frozen=True)
class ListScorer:
    """Scores the candidates of users.

    Attributes:
        predictor, items, pair_scorer, rules, blend: as in Recommender.
    """

    predictor: Predictor
    items: Items
    pair_scorer: PairScorer
    rules: ItemRules | None
    blend: Blend | None

    def scores(self, parts: Part, which: Tensor, items: Tensor, source_scores: Tensor | None) -> Tensor:
        """Returns the scores of T lists of I items each, shape (T, I), float32.

        The scores are probabilities. The scores of a blend are log-odds, unless a rule changes ranking scores
        (such as a boost), because such a rule needs numbers from 0 to 1.

        Args:
            parts, which, items: as for `PairScorer.list_logits`.
            source_scores: (T, I, S) the scores of the sources; None without a blend.
        """
        if self.blend is None or source_scores is None:
            return self.pair_scorer.score_lists(parts, which, items)
        logits = self.pair_scorer.list_logits(parts, which, items)
        blended = self.blend.scores(logits, source_scores.to(logits.device))
        return blended.sigmoid() if self._rules_move_items else blended

    @property
    def _rules_move_items(self) -> bool:
        """Returns whether the rules change the ranking scores of items."""
        return self.rules is not None and self.rules.moves_items

    def shown(self, scores: Tensor) -> Tensor:
        """Returns the scores that lists show, from 0 to 1, of the scores that `scores` returned."""
        return scores if self.blend is None or self._rules_move_items else scores.sigmoid()

    def keys(
        self, scores: Tensor, items: Tensor, candidate: Tensor | None, users: Indices, names: pa.Array
    ) -> Tensor:
        """Returns the ranking keys of R users and W items, shape (R, W).

        The key of an item that is not a candidate of the user is NO_CANDIDATE.

        Args:
            scores: (R, W) probabilities, or scores of a blend.
            items: (W,) item indices that all users share, or (R, W) item indices.
            candidate: (R, W) bool, whether the item is a candidate; None if all are candidates.
            users: (R,) the user of each row, as an index into `names`.
            names: the keys of the users.

        Raises:
            DataError: the score of a candidate is NaN, or a rule of another package made it NaN.
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
