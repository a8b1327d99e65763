"""Scores all items for all users in benchmarks/peers/plain_run.py.

The user's and the item's parts of a DLRM are computed once for each user and each item. For a user, the first
layer of the top MLP is linear in the item's vectors, because the user's vectors are constants. So each item's
vector is multiplied by a matrix of the user, (E, H). Many columns of items have few distinct values: their
products are computed once per distinct value, and summed per item. Users are scored in blocks that fit into
the cache, one thread per core.

Notation: U users of a block, I items, E elements of a vector, H outputs of the first layer of the top MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.peers.plain_data import CATEGORICAL, DENSE
from benchmarks.peers.plain_model import DIM, DLRM, TOP, pair_positions

USER_DENSE, ITEM_DENSE, CONTEXT_DENSE = (
    [DENSE.index(f"I{i}") for i in numbers] for numbers in (range(1, 6), range(6, 11), range(11, 14))
)
USER_COLUMNS, ITEM_COLUMNS, CONTEXT_COLUMNS = (
    [CATEGORICAL.index(f"C{i}") for i in numbers]
    for numbers in ((1, *range(3, 12)), (2, *range(12, 21)), range(21, 27))
)
_BLOCK_USERS = 16
_FEW_VALUES_SHARE = 0.25


@dataclass(frozen=True)
class Side:
    """Features of users or items: `dense` (n, D) and `ids` (n, C). Only the columns of the side are used."""

    dense: Tensor
    ids: Tensor


@torch.inference_mode()
def best_items(
    model: DLRM, users: Side, items: Side, context: Side, k: int, threads: int
) -> tuple[Tensor, Tensor]:
    """Returns the probabilities and the item numbers of each user's k best items, both (users, k).

    Args:
        model: the model.
        users, items: the features of all users and of all items.
        context: one row with the features of the context.
        k: number of items per list.
        threads: number of blocks that are scored at the same time, each in a thread of its own.
    """
    scorer = _Scorer(model, items, context)
    blocks = [
        Side(*block)
        for block in zip(users.dense.split(_BLOCK_USERS), users.ids.split(_BLOCK_USERS), strict=True)
    ]
    with ThreadPoolExecutor(threads) as pool:
        lists = list(pool.map(lambda block: scorer.lists(block, k), blocks))
    return torch.cat([scores for scores, _ in lists]).sigmoid(), torch.cat([best for _, best in lists])


class _Scorer:
    """The parts of a DLRM that depend on items and the context, and the scoring of a block of users."""

    def __init__(self, model: DLRM, items: Side, context: Side) -> None:
        (
            bottom1,
            bias1,
            self._bottom2,
            self._bias2,
            top1,
            bias3,
            self._top2,
            self._bias4,
            top3,
            self._bias5,
        ) = model.dense
        self._table, self._bottom1, self._top3 = model.table, bottom1, top3[0]
        # A vector has no product with itself, so the last position, that of the diagonal, has the weight 0.
        self._pair_weights = functional.pad(top1[:, DIM:], (0, 1))
        users, of_items, of_context = (
            [1 + column for column in columns] for columns in (USER_COLUMNS, ITEM_COLUMNS, CONTEXT_COLUMNS)
        )
        self._context = functional.embedding(context.ids[:, CONTEXT_COLUMNS], self._table)[0]  # (columns, E)
        vectors = functional.embedding(items.ids[:, ITEM_COLUMNS], self._table)  # (I, columns, E)

        self._bottom_constant = bias1 + bottom1[:, CONTEXT_DENSE] @ context.dense[0, CONTEXT_DENSE]
        self._item_bottom = items.dense[:, ITEM_DENSE] @ bottom1[:, ITEM_DENSE].T  # (I, 64)
        context_products = _same_side_products(
            self._context.unsqueeze(0), self._same_side_weights(of_context)
        )[0]
        self._user_constant = bias3 + context_products  # (H,)
        self._item_top = _same_side_products(vectors, self._same_side_weights(of_items))
        self._item_top += vectors.flatten(1) @ self._context_weights(of_items)  # (I, H)
        self._of_users = self._same_side_weights(users), self._context_weights(users)
        self._of_user_items = self._weights(users, of_items)  # (H, user columns, item columns)
        # The bottom MLP's vector is multiplied by the vectors of users, context and items.
        self._bottom_users = self._weights([0], users)[:, 0]  # (H, user columns)
        self._bottom_context = top1[:, :DIM] + self._weights([0], of_context)[:, 0] @ self._context  # (H, E)
        self._bottom_items = torch.einsum(
            "hc,ice->ieh", self._weights([0], of_items)[:, 0], vectors
        ).contiguous()  # (I, E, H)
        self._vectors = vectors
        self._few, self._many = self._split(items.ids[:, ITEM_COLUMNS], vectors)

    def _weights(self, first: Sequence[int], second: Sequence[int]) -> Tensor:
        """Returns the weights of the pairs of vectors, (H, len(first), len(second))."""
        return self._pair_weights[:, pair_positions()[list(first)][:, list(second)]]

    def _same_side_weights(self, places: Sequence[int]) -> Tensor:
        """Returns the weights (pairs, H) of the pairs of vectors that are both among `places`."""
        lower = torch.tril_indices(len(places), len(places), -1)
        return self._weights(places, places)[:, lower[0], lower[1]].T.contiguous()

    def _context_weights(self, places: Sequence[int]) -> Tensor:
        """Returns what each element of the vectors at `places` adds through the context, (columns * E, H)."""
        weights = self._weights(places, [1 + column for column in CONTEXT_COLUMNS])  # (H, columns, context)
        return (weights @ self._context).flatten(1).T.contiguous()

    def _split(self, ids: Tensor, vectors: Tensor) -> tuple[_FewValues, list[int]]:
        """Returns the item columns with few distinct values, and the numbers of the other columns."""
        columns, rows, numbers, many, start = [], [], [], [], 0
        for column in range(ids.shape[1]):
            values, number = torch.unique(ids[:, column], return_inverse=True)
            if len(values) > _FEW_VALUES_SHARE * len(ids):
                many.append(column)
                continue
            columns.append(column)
            rows.append(functional.embedding(values, self._table))
            numbers.append(number + start)
            start += len(values)
        table = torch.stack(numbers, 1) if numbers else ids[:, :0]
        return _FewValues(columns, rows, table), many

    def lists(self, users: Side, k: int) -> tuple[Tensor, Tensor]:
        """Returns the logits and the numbers of the k best items of each user of a block, both (U, k)."""
        with torch.inference_mode():
            count, vectors = len(users.ids), functional.embedding(users.ids[:, USER_COLUMNS], self._table)
            hidden = users.dense[:, USER_DENSE] @ self._bottom1[:, USER_DENSE].T + self._bottom_constant
            hidden = (self._item_bottom.unsqueeze(1) + hidden).relu_()  # (I, U, 64)
            bottom = torch.addmm(self._bias2, hidden.view(-1, hidden.shape[2]), self._bottom2.T).relu_()
            bottom = bottom.view(-1, count, DIM)  # (I, U, E)

            # What each element of an item's vector adds to the first layer, for each user: (columns, E, U, H).
            per_item = torch.einsum("hpq,upe->qeuh", self._of_user_items, vectors)
            pair_weights, context_weights = self._of_users
            user_part = _same_side_products(vectors, pair_weights) + self._user_constant
            user_part += vectors.flatten(1) @ context_weights  # (U, H)
            first = self._few.sums(per_item)  # (I, U * H)
            for column in self._many:
                first.addmm_(self._vectors[:, column], per_item[column].reshape(DIM, -1))
            first = first.view(-1, count, TOP[0])
            first.add_(self._item_top.unsqueeze(1)).add_(user_part)
            first.baddbmm_(bottom, self._bottom_items)
            of_user = (
                torch.einsum("hp,upe->ueh", self._bottom_users, vectors) + self._bottom_context.T
            )  # (U, E, H)
            first.transpose(0, 1).baddbmm_(bottom.transpose(0, 1), of_user)
            second = torch.addmm(self._bias4, first.relu_().view(-1, TOP[0]), self._top2.T).relu_()
            logits = (second @ self._top3 + self._bias5).view(-1, count)  # (I, U)
            scores, items = logits.topk(k, dim=0)
            return scores.T, items.T


def _same_side_products(vectors: Tensor, weights: Tensor) -> Tensor:
    """Returns what dot products of pairs of each row's vectors (n, columns, E) add to the first layer, (n, H)."""
    lower = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1)
    dots = torch.bmm(vectors, vectors.transpose(1, 2))  # (n, columns, columns)
    return dots[:, lower[0], lower[1]] @ weights


@dataclass(frozen=True)
class _FewValues:
    """Item columns with few distinct values.

    Attributes:
        columns: their numbers among the item columns.
        vectors: for each of them, the vectors of its distinct values (values, E).
        numbers: (I, columns), the number of each item's value among all values of all columns.
    """

    columns: list[int]
    vectors: list[Tensor]
    numbers: Tensor

    def sums(self, per_item: Tensor) -> Tensor:
        """Returns what the columns add to the first layer, (I, U * H).

        Args:
            per_item: (item columns, E, U, H), the matrices of the users.
        """
        width = per_item.shape[2] * per_item.shape[3]
        if not self.columns:
            return per_item.new_zeros(len(self.numbers), width)
        products = [
            vectors @ per_item[column].reshape(DIM, width)
            for column, vectors in zip(self.columns, self.vectors, strict=True)
        ]
        return functional.embedding_bag(self.numbers, torch.cat(products), mode="sum")
