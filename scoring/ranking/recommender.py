"""Scores the candidates of batches of users, and chooses the k best candidates of each user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from scoring.model.launch_ahead import ResultCopy, launch_ahead, to_device
from scoring.model.predictor import Predictor, Result
from scoring.ranking.pair_scorer import Blend, PairScorer, SourceScores
from scoring.ranking.pairs import (
    CandidateLists,
    Indices,
    Items,
    Lists,
    SideInputs,
    blocks,
    read_items,
    repeated,
    side_of,
)
from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys, split_keys, top_keys
from scoring.requests import CANDIDATES, EXCLUDED, MEASURED, POSITIVES, SOURCE_SCORES, ListRequest
from scoring.rules.apply_rules import ItemRules, load_rules
from scoring.rules.request import RANKED
from storage.feature_spec import USER_KEY
from training.data.prefetch import Prefetch
from training.models.factorization import Part

# The code below computes the logits of candidates, by a model or by a blend, and their ranking keys.
#
# Lists are ranked by logits. The scores that lists show are the sigmoids of the logits. float32 cannot
# distinguish sigmoids near 1, so many items of a list might have equal scores.

_FIND_NAN = (
    "look for NaN or infinite features of this user and item; if there are none, train the model again"
)
_LEAVE_FP16 = "; float16 has no numbers above 65,504, so pass --set score.precision=bf16"


@dataclass(frozen=True)
class ListScorer:
    """Computes the logits of the candidates of users, and ranks the candidates.

    Attributes:
        predictor, items, rules: see ListRanker.
        pair_scorer: computes the logits of pairs of user and item with the model.
        blend: the weights of the blend; None without a blend.
    """

    predictor: Predictor
    items: Items
    pair_scorer: PairScorer
    rules: ItemRules | None
    blend: Blend | None

    def logits(self, parts: Part, which: Tensor, items: Tensor, source_scores: Tensor | None) -> Tensor:
        """Returns the logits of T lists of I items each, shape (T, I), float32.

        With a blend, these are the scores of the blend.

        Args:
            parts, which, items: as for `PairScorer.list_logits`.
            source_scores: (T, I, S) the scores of the sources; None without a blend.
        """
        logits = self.pair_scorer.list_logits(parts, which, items)
        if self.blend is None or source_scores is None:
            return logits
        return self.blend.scores(logits, source_scores.to(logits.device))

    def keys(
        self,
        logits: Tensor,
        items: Tensor,
        candidate: Tensor | None,
        users: Tensor,
        names: pa.Array,
        found_nan: list[Tensor] | None = None,
    ) -> Tensor:
        """Returns the ranking keys of R users and W items, shape (R, W).

        Items are ranked by their logits. If a rule such as a boost changes ranking scores, they are ranked by
        the scores that the rules compute from the sigmoids of the logits. An item that is not a candidate of
        the user has the ranking key NO_CANDIDATE.

        Args:
            logits: (R, W) logits of the model, or scores of the blend.
            items: (W,) item indices that all users share, or (R, W) item indices.
            candidate: (R, W) bool, whether the item is a candidate; None if all are candidates.
            users: (R,) the user of each row, as an index into `names`.
            names: the keys of the users.
            found_nan: a list to which the function appends a bool tensor of shape () on the device, which is
                true if the logit of a candidate is NaN. With this list, a NaN raises no error, and the host
                does not wait for the logits.

        Raises:
            DataError: the logit of a candidate is NaN, or a rule of another package returned NaN.
        """
        wrong = logits.isnan() if candidate is None else logits.isnan() & candidate
        if found_nan is not None:
            found_nan.append(wrong.any())
        elif wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            item = self.items.keys[int(items.expand(logits.shape)[row, column])]
            raise DataError(
                f"model {self.predictor.version} scores user {names[int(users[row])]} "
                f"with item {item} as NaN "
                f"({int(wrong.sum())} of the {wrong.numel()} pairs scored together are NaN)",
                _FIND_NAN + (_LEAVE_FP16 if self.predictor.precision == "fp16" else ""),
            )
        ranked_by = logits
        if self.rules is not None and self.rules.moves_items:
            ranked_by = self.rules.ranking_scores(logits.sigmoid(), items)
        keys = ranking_keys(ranked_by, items)
        return keys if candidate is None else keys.masked_fill_(~candidate, NO_CANDIDATE)


# At least this number of (user, item) cells are ranked together, even if a micro-batch of the model has fewer
# pairs. The number is halved together with the micro-batch when memory runs out.
_MIN_PLACES = 131_072

# Minimum number of users per pass over the items: the first number if the item parts stay in memory, the
# second if each pass must compute them again.
_LEAST_USERS, _LEAST_USERS_ANEW = 16, 128

# Maximum number of users per pass. This limits the memory for the rankings of these users.
_MOST_USERS = 1_024

# Number of blocks of users that a device works on while the host reads the lists of an earlier block.
_BLOCKS_AHEAD = 1


@dataclass(frozen=True)
class _Users:
    """The inputs and the candidates of the users of a batch, in the host's memory.

    Attributes:
        side: their model inputs.
        lists: their candidates.
        sources: the scores of the sources; None without a blend.
    """

    side: SideInputs
    lists: CandidateLists
    sources: SourceScores | None


@dataclass(frozen=True)
class _Block:
    """A block: consecutive users of a batch whose lists are made together.

    Attributes:
        users: the users.
        side, lists, sources: as in _Users, for all users of the batch; `side` and `lists` are on the device.
        scores: (P, S) the scores of the sources on the device; None without a blend.
    """

    users: slice
    side: SideInputs
    lists: CandidateLists
    sources: SourceScores | None
    scores: Tensor | None


@dataclass(frozen=True)
class _LaunchedLists:
    """The lists of a block of users, whose computation on the device has been started.

    Attributes:
        block: the users.
        names: their keys.
        rank_again: computes the ranking keys again, to raise the error for a score that is NaN.
        ruled_lists: the lists that the business rules chose; None without rules.
        best: without rules, one array with the K highest ranking keys of each of the U users, followed by two
            flags: whether a list of the batch is wrong, and whether a score of the block is NaN.
    """

    block: _Block
    names: pa.Array
    rank_again: Callable[[], Tensor]
    ruled_lists: pa.RecordBatch | None
    best: ResultCopy | None


@dataclass(frozen=True)
class ListRanker:
    """Makes the lists of users, with a loaded model and the candidate items.

    Attributes:
        predictor: the loaded model.
        items: the candidate items, on the device of the predictor.
        k: maximum length of a list.
        list_scorer: ranks pairs of user and item, by the model or by a blend.
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
    ) -> ListRanker:
        """Returns a recommender for these items. The inputs of the items may be on any device."""
        items = Items(items.keys, items.side.to(predictor.device))
        scorer = ListScorer(predictor, items, PairScorer(predictor, items.side), rules, blend)
        return cls(predictor, items, k, scorer, rules)

    def recommend(self, users: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the k best candidates of each user, as batches with the schema RECOMMENDATIONS.

        The users keep their order. The items of a user are sorted by logit descending, then by item key
        ascending; rules can change this order. The score is the sigmoid of the logit. A user without
        candidates has no row in the result.

        Args:
            users: a batch with one row per user. The columns are user_key, candidates, excluded and the user
                features, and also source_scores if there is a blend.

        Raises:
            DataError: a score is NaN, or candidates are out of range or repeated. The message names the user.
            InfrastructureError: the device has too little memory for a block of users, even with the smallest
                micro-batches.
        """
        return self.recommend_all(iter([users]))

    def recommend_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the lists of the users of all batches, as `recommend` does for one batch.

        For a GPU, a thread reads the next batch and copies its columns to pinned memory. The host reads the
        lists of a block of users after it has started the work for the next block.
        """
        prepared = map(self._prepared, batches)
        if self.predictor.device.type != "cuda":
            yield from launch_ahead(self._blocks(prepared), self._launch, self._finish, _BLOCKS_AHEAD)
            return
        with Prefetch(prepared, capacity=1) as ahead:
            yield from launch_ahead(self._blocks(ahead), self._launch, self._finish, _BLOCKS_AHEAD)

    def _prepared(self, users: pa.RecordBatch) -> _Users:
        """Returns the inputs and the candidates of the users of a batch, on the host."""
        predictor, blend = self.predictor, self.list_scorer.blend
        rows = pa.Table.from_batches([users])
        side = side_of(rows, predictor.spec, predictor.multi_hot, "user")
        keys, candidates = users.column(USER_KEY), users.column(CANDIDATES)
        sources = None
        if blend is not None:
            sources = SourceScores.of(keys, candidates, users.column(SOURCE_SCORES), len(blend.weights))
        lists = CandidateLists(
            keys, candidates, users.column(EXCLUDED), len(self.items.keys), keep_lists=sources is not None
        )
        return _Users(side.pinned_for(predictor.device), lists, sources)

    def _blocks(self, batches: Iterator[_Users]) -> Iterator[_Block]:
        """Yields the blocks of users of all batches. Each batch is copied to the device as a whole."""
        least = _LEAST_USERS if self.list_scorer.pair_scorer.keeps_items else _LEAST_USERS_ANEW
        for batch in batches:
            side, lists, scores = self._within_memory(partial(self._copied, batch))
            for users in blocks(lists.most(), self._places, least, _MOST_USERS):
                yield _Block(users, side, lists, batch.sources, scores)

    def _copied(self, batch: _Users) -> tuple[SideInputs, CandidateLists, Tensor | None]:
        """Copies the inputs, candidates and source scores of a batch of users to the device; returns them."""
        device, scores = self.predictor.device, None
        if batch.sources is not None:
            scores = to_device(torch.from_numpy(batch.sources.scores), device)
        return batch.side.to(device), batch.lists.to(device), scores

    def _within_memory(self, work: Callable[[], Result]) -> Result:
        """Returns the result of `work`, which is called again with smaller micro-batches if memory runs out.

        Raises:
            InfrastructureError: memory runs out even with the smallest micro-batches.
        """
        return self.predictor.micro_batch.within_memory(lambda _: work())

    def _launch(self, block: _Block) -> _LaunchedLists:
        """Starts the work for a block of users. With business rules, the host waits for the result."""
        return self._within_memory(partial(self._launch_once, block))

    @torch.inference_mode()
    def _launch_once(self, block: _Block) -> _LaunchedLists:
        users, lists = block.users, block.lists
        parts = self.list_scorer.pair_scorer.user_parts(block.side.part(users))
        names = lists.users.slice(users.start, users.stop - users.start)
        scores = block.scores
        if block.sources is not None and scores is not None:
            scores = scores[block.sources.starts[users.start] : block.sources.starts[users.stop]]
        asked = lists.of(users)
        work = partial(self._ranked, asked, parts, names, scores)
        if self.rules is not None:
            if lists.wrong is not None and lists.wrong:
                lists.require_right(users)
            of_items = None if block.sources is None else partial(block.sources.of_items, users)
            ruled_lists = self._by_rules(self.rules, work(), parts, names, of_items)
            return _LaunchedLists(block, names, work, ruled_lists, None)
        found_nan = [torch.zeros((), dtype=torch.bool, device=self.predictor.device)]
        best = work(found_nan)[:, : self.k]
        wrong = found_nan[0] if lists.wrong is None else lists.wrong
        flags = torch.stack([wrong, torch.stack(found_nan).any()]).long()
        return _LaunchedLists(block, names, work, None, ResultCopy(torch.cat([best.flatten(), flags])))

    def _finish(self, launched: _LaunchedLists) -> pa.RecordBatch:
        """Returns the lists of a block of users.

        Without business rules, waits for the device and reads the lists.
        """
        if launched.ruled_lists is not None:
            return launched.ruled_lists
        assert launched.best is not None
        numbers = launched.best.read()
        wrong_lists, found_nan = numbers[-2:].tolist()
        if wrong_lists:
            launched.block.lists.require_right(launched.block.users)
        if found_nan:
            self._within_memory(launched.rank_again)
        return self._best(numbers[:-2].view(len(launched.names), -1), launched.names)

    @property
    def _places(self) -> int:
        """Returns the maximum number of cells (pairs of user and item) that are ranked together."""
        micro_batch = self.predictor.micro_batch
        return max(micro_batch.rows, _MIN_PLACES >> micro_batch.halvings)

    @property
    def _pool(self) -> int:
        """Returns how many of a user's best candidates are ranked, before the list is chosen from them."""
        whole = self.rules is not None and self.rules.need_whole_rankings
        return len(self.items.keys) if whole else self.k

    def _best(self, best: Tensor, users: pa.Array) -> pa.RecordBatch:
        """Returns the lists without business rules: the first `k` candidates of each ranking.

        Args:
            best: (U, K) ranking keys on the CPU: the first K columns of the result of `_ranked`.
            users: the keys of the U users.
        """
        filled = best != NO_CANDIDATE
        logits, index = split_keys(best[filled])
        reasons = pa.repeat(RANKED, len(index))
        return list_rows(filled, logits.sigmoid(), self._keys_of(index), reasons, users)

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
        ranked_by, index = split_keys(keys)
        items = torch.where(valid, index, 0)
        chosen = rules.choose(items, valid, users.to_pylist(), self.k)
        filled, picked = chosen.filled, items.gather(1, chosen.positions)  # (U, K) each
        if not rules.moves_items:
            logits = ranked_by.gather(1, chosen.positions)
        else:  # the keys contain scores that rules changed, but a list shows the scores before the rules
            of_sources = None
            if of_items is not None:
                of_sources = torch.from_numpy(of_items(picked.cpu().numpy()))
            which = torch.arange(len(picked), device=picked.device)
            logits = self.list_scorer.logits(parts, which, picked, of_sources)
        reasons = pa.array(rules.reasons, pa.string()).take(pa.array(chosen.reasons[filled].cpu().numpy()))
        filled = filled.cpu()
        scores, of_entries = logits.cpu()[filled].sigmoid(), self._keys_of(picked.cpu()[filled])
        return list_rows(filled, scores, of_entries, reasons, users)

    @torch.inference_mode()
    def _ranked(
        self,
        asked: Lists,
        parts: Part,
        names: pa.Array,
        source_scores: Tensor | None,
        found_nan: list[Tensor] | None = None,
    ) -> Tensor:
        """Returns the ranking keys of the best candidates of U users, shape (U, W).

        Each row is sorted, best candidate first, and NO_CANDIDATE fills the end of the row. W is at most
        `_pool`. A ranking key combines ranking score and item index (scoring/ranking/top_k.py).

        Args:
            asked: the candidates of the users.
            parts: the user parts that PairScorer.user_parts() returns.
            names: the keys of the users, for error messages.
            source_scores: (Σ lengths, S) the scores of the sources, in the order of `asked.items`; None
                without a blend.
            found_nan: see `ListScorer.keys`.
        """
        device = self.predictor.device
        best = torch.full((len(names), min(self._pool, len(self.items.keys))), NO_CANDIDATE, device=device)
        every, listed = (to_device(torch.from_numpy(part), device) for part in (asked.everyone, asked.listed))
        for users, keys in (
            (every, self._of_all(asked, every, parts, names, found_nan)),
            (listed, self._of_lists(asked, listed, parts, names, source_scores, found_nan)),
        ):
            for more_keys in keys:
                merged = torch.cat([best[users], top_keys(more_keys, best.shape[1])], dim=1)
                best[users] = top_keys(merged, best.shape[1])
        return best

    def _of_all(
        self, asked: Lists, every: Tensor, parts: Part, names: pa.Array, found_nan: list[Tensor] | None
    ) -> Iterator[Tensor]:
        """Yields ranking keys (A, W) of the A users who are scored against all items.

        Each matrix has the keys of W consecutive items.
        """
        if not len(asked.everyone):
            return
        some_parts = tuple(part.index_select(0, every) for part in parts)
        width = max(self._places // len(every), 1)
        for start in range(0, len(self.items.keys), width):
            items = slice(start, min(start + width, len(self.items.keys)))
            index = torch.arange(items.start, items.stop, device=every.device)
            candidate = self._not_excluded(asked, items)
            logits = self.list_scorer.pair_scorer.consecutive_logits(some_parts, items)
            yield self.list_scorer.keys(logits, index, candidate, every, names, found_nan)

    def _not_excluded(self, asked: Lists, items: slice) -> Tensor | None:
        """Returns a matrix (A, W) of bools: which of W consecutive items are candidates of each of A users.

        Returns None if the host can determine without waiting that all these items are candidates of all
        these users.
        """
        user, item = asked.excluded
        width, device = items.stop - items.start, self.predictor.device
        in_range = (item >= items.start) & (item < items.stop)
        some = bool(in_range.any()) if device.type == "cpu" else bool(len(item))
        if not some and not len(asked.chosen):
            return None
        cells = len(asked.everyone) * width
        kept = torch.ones(cells + 1, dtype=torch.bool, device=device)
        if some:  # items outside the range set the last cell, which is dropped below
            kept[torch.where(in_range, user * width + item - items.start, cells)] = False
        kept = kept[:cells].view(-1, width)
        if len(asked.chosen):
            chosen = to_device(torch.from_numpy(asked.chosen), device)
            kept[chosen] = asked.wanted[:, items]
        return kept

    def _of_lists(
        self,
        asked: Lists,
        listed: Tensor,
        parts: Part,
        names: pa.Array,
        source_scores: Tensor | None,
        found_nan: list[Tensor] | None,
    ) -> Iterator[Tensor]:
        """Yields ranking keys (L, W) of the L users who are scored against a list of items.

        Each matrix has the keys of a range of positions in the lists. NO_CANDIDATE fills the cells without an
        item.
        """
        longest = int(asked.lengths.max(initial=0))
        starts = np.cumsum(asked.lengths) - asked.lengths
        width = max(self._places // max(len(asked.listed), 1), 1)
        for column in range(0, longest, width):
            lengths = (asked.lengths - column).clip(0, width)
            pieces = Pieces.of(lengths, starts + column, asked.items)
            which = listed[pieces.list]
            of_sources = None if source_scores is None else source_scores[pieces.index]
            logits = self.list_scorer.logits(parts, which, pieces.items, of_sources)
            keys = self.list_scorer.keys(logits, pieces.items, pieces.filled, which, names, found_nan)
            laid_out = torch.full(
                (len(lengths), pieces.most, keys.shape[1]), NO_CANDIDATE, device=keys.device
            )
            laid_out[pieces.list, pieces.place] = keys
            yield laid_out.flatten(1)

    def _keys_of(self, index: Tensor) -> pa.Array:
        """Returns the item keys of these item indices."""
        return self.items.keys.take(pa.array(index.numpy()))


def load_recommender(request: ListRequest, predictor: Predictor) -> ListRanker:
    """Reads the items and the tables of the business rules, and puts them on the predictor's device.

    Args:
        request: names the files of the items and the tables of the rules, and contains the number k.
        predictor: the loaded model `request.model`.

    Raises:
        ConfigError, DataError: the errors that `read_items` and `load_rules` raise.
    """
    items = read_items(request.item_files, predictor, dict(request.context))
    rules = load_rules(request.rules, items.keys, predictor.device) if request.rules else None
    blend = Blend.of(request.blend, predictor.device) if request.blend else None
    return ListRanker.of(predictor, items, request.k, rules, blend)


# The code below computes the logits of all candidates of users. A blend is fitted to these logits.

_MOST_PLACES, _LEAST_LOGIT_USERS, _MOST_LOGIT_USERS = 131_072, 16, 1_024


class CandidateLogits:
    """Computes the logits of candidates, with a model and the items.

    Args:
        request: names the files of the items.
        predictor: the loaded model.
    """

    def __init__(self, request: ListRequest, predictor: Predictor) -> None:
        items = read_items(request.item_files, predictor, dict(request.context))
        self._predictor, self._num_items = predictor, len(items.keys)
        self._pair_scorer = PairScorer(predictor, items.side.to(predictor.device))

    def measure(self, users: pa.RecordBatch, sources: int) -> pa.RecordBatch:
        """Returns the candidates of each user with their logits, as a batch with the schema MEASURED.

        Each binary value contains the bytes of an array with one element per candidate: `items` int32,
        `logits` float32, `clicked` bool. `scores` has `sources` float32 numbers per candidate.

        Args:
            users: a batch with one row per user. The columns are user_key, the user features, candidates,
                excluded, source_scores, and positives: the indices of the items that the user clicked and
                that the blend is fitted to. The index -1 represents an item that cannot be a candidate.
            sources: number of sources.

        Raises:
            DataError: candidates are out of range or repeated. The message names the user.
            InfrastructureError: the device has too little memory even for the smallest micro-batches.
        """
        return self._predictor.micro_batch.within_memory(lambda _: self._measure(users, sources))

    @torch.inference_mode()
    def _measure(self, users: pa.RecordBatch, sources: int) -> pa.RecordBatch:
        predictor, keys, candidates = self._predictor, users.column(USER_KEY), users.column(CANDIDATES)
        rows = pa.Table.from_batches([users])
        side = side_of(rows, predictor.spec, predictor.multi_hot, "user").to(predictor.device)
        scores = SourceScores.of(keys, candidates, users.column(SOURCE_SCORES), sources)
        lists = CandidateLists(keys, candidates, users.column(EXCLUDED), self._num_items, keep_lists=True)
        if lists.to(predictor.device).wrong:
            lists.require_right(slice(0, len(users)))
        logits = [np.zeros(0, np.float32)]
        most_places = max(_MOST_PLACES >> predictor.micro_batch.halvings, 1)
        for block in blocks(lists.most(), most_places, _LEAST_LOGIT_USERS, _MOST_LOGIT_USERS):
            parts = self._pair_scorer.user_parts(side.part(block))
            asked = lists.of(block)
            pieces = Pieces.of(asked.lengths, np.cumsum(asked.lengths) - asked.lengths, asked.items)
            which = to_device(torch.from_numpy(asked.listed), predictor.device)[pieces.list]
            # The pieces of a list are consecutive, so the cells with items have the order of `asked.items`.
            scored = self._pair_scorer.list_logits(parts, which, pieces.items)
            logits.append(scored.cpu().numpy()[pieces.filled.cpu().numpy()])
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


# The code below divides lists of items into pieces of equal width, so that a device can score many lists at
# once.


@dataclass(frozen=True)
class Pieces:
    """Several lists of items, divided into pieces of equal width.

    A piece contains consecutive items of one list.

    T is the number of pieces. The last piece of a list may have empty cells. The tensors are on the device of
    the items.

    Attributes:
        list: (T,) the index of the list of each piece.
        place: (T,) the position of each piece among the pieces of its list, from 0.
        index: (T, width) the positions of the cells in the array of all items. Undefined in empty cells.
        items: (T, width) int64 item indices; 0 in empty cells.
        filled: (T, width) bool, whether the cell contains an item.
        most: the largest number of pieces of a list.
    """

    list: Tensor
    place: Tensor
    index: Tensor
    items: Tensor
    filled: Tensor
    most: int

    @classmethod
    def of(cls, lengths: Indices, starts: Indices, items: Tensor) -> Pieces:
        """Divides lists of items into pieces of equal width.

        The function piece_width() chooses the width.

        The host does not wait for the device.

        Args:
            lengths: (L,) the length of each list.
            starts: (L,) the index in `items` at which each list starts.
            items: the item indices of all lists.
        """
        width = piece_width(lengths)
        counts = -(-lengths // width)
        device, pieces = items.device, int(counts.sum())
        of_lists = np.stack([counts, np.cumsum(counts) - counts, lengths, starts])
        repeats, first, length, start = to_device(torch.from_numpy(of_lists), device)
        of_list = repeated(repeats, pieces)
        place = torch.arange(pieces, device=device) - first[of_list]
        within = place[:, None] * width + torch.arange(width, device=device)  # (T, width)
        filled = within < length[of_list, None]
        index = (start[of_list, None] + within).clamp_(max=max(len(items) - 1, 0))
        in_cells = items.index_select(0, index.flatten()).view(index.shape).long() * filled
        return cls(of_list, place, index, in_cells, filled, int(counts.max(initial=0)))


_PIECE_WIDTHS = (256, 128, 64, 32, 16, 8, 4, 2)

# Maximum number of empty cells as a share of the filled cells. The device scores empty cells too, and their
# scores are not used.
_EMPTY_SHARE = 0.125


def piece_width(lengths: Indices) -> int:
    """Returns the width of the pieces into which lists of these lengths are divided.

    A piece has `width` cells, which contain consecutive items of one list; the last piece of a list may have
    empty cells. The width is a power of two and at most 256. It is the largest width for which there is at
    most one empty cell per eight filled cells. If no larger width satisfies this rule, the width is 1.
    """
    total = int(lengths.sum())
    for width in _PIECE_WIDTHS:
        if int((-(-lengths // width)).sum()) * width <= (1 + _EMPTY_SHARE) * total:
            return width
    return 1


# The code below makes Arrow batches from the entries of top-k lists.

RECOMMENDATIONS = pa.schema(
    [
        ("user_id", pa.string()),
        ("position", pa.int32()),
        ("item_id", pa.string()),
        ("score", pa.float32()),
        ("reason", pa.string()),
    ]
)


def list_rows(
    filled: Tensor, score: Tensor, items: pa.Array, reasons: pa.Array, users: pa.Array
) -> pa.RecordBatch:
    """Returns list entries as a batch with the schema RECOMMENDATIONS.

    Args:
        filled: (U, K) bool on the CPU. There is one list entry for each true cell, in row order.
        score: the score of each list entry, on the CPU.
        items: the item key of each list entry.
        reasons: the reason of each list entry.
        users: the keys of the U users.
    """
    row, position = filled.nonzero(as_tuple=True)
    return pa.RecordBatch.from_arrays(
        [
            users.take(pa.array(row.numpy())),
            pa.array((position + 1).int().numpy()),
            items,
            pa.array(score.numpy()),
            reasons,
        ],
        schema=RECOMMENDATIONS,
    )
