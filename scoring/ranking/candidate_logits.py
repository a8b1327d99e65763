"""Computes the logit of every candidate of users, for learning a blend."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from scoring.inputs.requests import CANDIDATES, EXCLUDED, MEASURED, POSITIVES, SOURCE_SCORES, ListRequest
from scoring.model.predictor import Predictor
from scoring.ranking.blend import SourceScores
from scoring.ranking.candidate_items import read_items
from scoring.ranking.pair_scorer import PairScorer
from scoring.ranking.pairs import CandidateLists, blocks, side_of
from scoring.ranking.pieces import Pieces
from storage.feature_spec import USER_KEY

_MOST_PLACES, _LEAST_USERS, _MOST_USERS = 131_072, 16, 1_024


class CandidateLogits:
    """A model and the items, which computes the logits of candidates.

    Args:
        request: names the files of the items.
        predictor: the loaded model.
    """

    def __init__(self, request: ListRequest, predictor: Predictor) -> None:
        items = read_items(request.item_files, predictor, dict(request.context))
        self._predictor, self._num_items = predictor, len(items.keys)
        self._pair_scorer = PairScorer(predictor, items.side.to(predictor.device))

    @torch.inference_mode()
    def measure(self, users: pa.RecordBatch, sources: int) -> pa.RecordBatch:
        """Returns the candidates of each user with their logits, as a batch with the schema MEASURED.

        Each binary value is the memory of an array with one element per candidate: `items` int32, `logits`
        float32, `clicked` bool. `scores` has `sources` float32 numbers per candidate.

        Args:
            users: a batch with one row per user. The columns are user_key, the user features, candidates,
                excluded, source_scores, and positives: the item indices that the user clicked later. An index
                of -1 is not an item that can be a candidate.
            sources: number of sources.

        Raises:
            DataError: candidates are out of range or repeated. The message names the user.
        """
        predictor, keys, candidates = self._predictor, users.column(USER_KEY), users.column(CANDIDATES)
        rows = pa.Table.from_batches([users])
        side = side_of(rows, predictor.spec, predictor.multi_hot, "user").to(predictor.device)
        scores = SourceScores.of(keys, candidates, users.column(SOURCE_SCORES), sources)
        lists = CandidateLists(keys, candidates, users.column(EXCLUDED), self._num_items, keep_lists=True)
        logits = [np.zeros(0, np.float32)]
        for block in blocks(lists.most(), _MOST_PLACES, _LEAST_USERS, _MOST_USERS):
            parts = self._pair_scorer.user_parts(side.part(block))
            asked = lists.of(block)
            pieces = Pieces.of(asked.lengths, np.cumsum(asked.lengths) - asked.lengths, asked.items)
            which, items = (
                torch.from_numpy(array).to(predictor.device)
                for array in (asked.listed[pieces.list], pieces.items)
            )
            # The pieces of a list are consecutive, so the cells with items have the order of `asked.items`.
            logits.append(self._pair_scorer.list_logits(parts, which, items).cpu().numpy()[pieces.filled])
        flat = np.concatenate(logits)
        measured = []
        for user, clicked in enumerate(users.column(POSITIVES).to_pylist()):
            of_user = slice(scores.starts[user], scores.starts[user + 1])
            items_of_user = scores.items[of_user].astype(np.int32)
            arrays = (
                items_of_user,
                flat[of_user],
                scores.scores[of_user],
                np.isin(items_of_user, clicked),
            )
            measured.append([keys[user].as_py(), len(clicked), *(array.tobytes() for array in arrays)])
        columns = zip(*measured, strict=True) if measured else [[] for _ in MEASURED]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, MEASURED, strict=True)],
            schema=MEASURED,
        )
