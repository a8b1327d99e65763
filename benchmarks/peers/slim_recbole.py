"""SLIM, a sparse linear model of item weights, as the library RecBole implements it with scikit-learn.

Source: Ning and Karypis 2011, "SLIM: Sparse Linear Methods for Top-N Recommender Systems". Each item's column of weights is an
elastic net with weights of at least 0. A model is trained on the choices of the train split; at the test, the choices that it
weights also hold the validation item.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from recbole.model.general_recommender.slimelastic import SLIMElastic
from scipy.sparse import csr_matrix

from benchmarks.list_measures import Matrix

# Fitting the weights of one item reads the columns of all items, so 12,000 items of Amazon Beauty would take hours per setting.
MOST_ITEMS = 5_000


class _Data:
    """What RecBole's model reads from a data set of RecBole: the numbers of users and items, and the choices."""

    def __init__(self, choices: csr_matrix) -> None:
        self._choices = choices

    def num(self, field: str) -> int:
        """Returns the number of users or items."""
        return int(self._choices.shape[0 if field == "user" else 1])

    def inter_matrix(self, form: str) -> csr_matrix:
        """Returns the choices (U, I)."""
        return self._choices.asformat(form)


class SLIM:
    """A model, which is fitted in one epoch.

    Args:
        train: (U, I), 1 where the user chose the item in the train split.
        setting: `alpha`, the weight of the penalty, and `l1_ratio`, the share of the L1 norm in it.
        seed: seed of the order in which the weights of an item are fitted.
    """

    def __init__(self, train: csr_matrix, setting: dict[str, Any], seed: int) -> None:
        self._train, self._history, self._seed = train, train, seed
        self._config = {
            "USER_ID_FIELD": "user",
            "ITEM_ID_FIELD": "item",
            "NEG_PREFIX": "neg_",
            "device": torch.device("cpu"),
            "hide_item": True,
            "positive_only": True,
            **setting,
        }
        self.module: Any = None

    def train_epoch(self) -> None:
        """Fits the weights of all items."""
        np.random.seed(self._seed)  # scikit-learn draws from NumPy's global generator
        self.module = SLIMElastic(self._config, _Data(self._train))

    def read(self, history: csr_matrix) -> None:
        """Sets the choices (U, I) that `scores` weights."""
        self._history = history

    def scores(self, users: slice) -> Matrix:
        """Returns the scores (u, I) of all items for a range of users."""
        return (self._history[users] @ self.module.item_similarity).toarray()
