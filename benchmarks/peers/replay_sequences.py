"""What the sequence models of the library RePlay have in common: reading sequences, training in batches of users."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from replay.data import FeatureHint, FeatureType
from replay.data.nn import TensorFeatureInfo, TensorSchema

from benchmarks.list_measures import Lists, Matrix

ITEM = "item"
USERS_PER_BATCH = 128
# If there are more items, the cross-entropy is over the chosen item and items drawn with equal probabilities.
FULL_SOFTMAX_ITEMS = 5_000
DRAWN_ITEMS = 256


class SequencePeer(ABC):
    """A model in training.

    Args:
        sequence, starts: the users' choices in the train split; see `Task` of benchmarks/list_task.py.
        items: number of items.
        setting: `width` of the vectors, `dropout`, `places`, the number of last items that the model reads, and
            further settings of the model.
        seed: seed of first weights, dropout, drawn items and order of users.
    """

    # Whether the library's table has a row for the padding. If not, padding has the id 0, which the mask hides.
    reads_padding = True

    def __init__(
        self, sequence: Lists, starts: Lists, items: int, setting: dict[str, Any], seed: int
    ) -> None:
        torch.manual_seed(seed)
        self._items, self._places = items, setting["places"]
        self._padding = items if self.reads_padding else 0
        self._train = [sequence[first:last] for first, last in pairwise(starts)]
        self._users = torch.tensor([user for user, own in enumerate(self._train) if len(own) > 1])
        self._histories = self._train
        feature = TensorFeatureInfo(
            ITEM,
            feature_type=FeatureType.CATEGORICAL,
            is_seq=True,
            feature_hint=FeatureHint.ITEM_ID,
            cardinality=items,
            padding_value=self._padding,
            embedding_dim=setting["width"],
        )
        self.module = self._make(TensorSchema(feature), setting)
        self._optimizer = self.module.configure_optimizers()  # Adam

    @abstractmethod
    def _make(self, schema: TensorSchema, setting: dict[str, Any]) -> Any:
        """Returns the model of the library."""

    @abstractmethod
    def _loss(self, sequences: list[Lists], step: int) -> torch.Tensor:
        """Returns the loss of a batch of users' sequences."""

    @abstractmethod
    def _predict(self, sequences: list[Lists]) -> torch.Tensor:
        """Returns the scores (B, I) of the items that may follow the sequences."""

    @property
    def loss_settings(self) -> dict[str, Any]:
        """Returns the settings of the loss: cross-entropy over all items, or over drawn items of a large catalogue."""
        return {
            "loss_type": "CE",
            "loss_sample_count": None if self._items <= FULL_SOFTMAX_ITEMS else DRAWN_ITEMS,
            "negatives_sharing": True,  # a step draws the items once for all its places
        }

    def train_epoch(self) -> None:
        """Trains on the sequences of all users once, in a random order."""
        self.module.train()
        order = self._users[torch.randperm(len(self._users))]
        for step, users in enumerate(order.split(USERS_PER_BATCH)):
            self._optimizer.zero_grad()
            self._loss([self._train[user] for user in users.tolist()], step).backward()
            self._optimizer.step()

    def read(self, validation: Lists | None) -> None:
        """Sets whether the sequences that `scores` reads end with the validation items (U,), -1 for none."""
        self._histories = self._train
        if validation is not None:
            pairs = zip(self._train, validation, strict=True)
            self._histories = [np.append(own, item) if item >= 0 else own for own, item in pairs]

    def scores(self, users: slice) -> Matrix:
        """Returns the scores (u, I) of all items for a range of users."""
        self.module.eval()
        with torch.no_grad():
            return self._predict(self._histories[users]).double().numpy()

    def batch(self, sequences: list[Lists], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the last `length` items of sequences (B, L), padded at the start, and where there is an item (B, L)."""
        ids = np.full((len(sequences), length), self._padding, np.int64)
        is_item = np.zeros(ids.shape, np.bool_)
        for row, own in enumerate(sequences):
            last = own[-length:]
            ids[row, length - len(last) :] = last
            is_item[row, length - len(last) :] = True
        return torch.from_numpy(ids), torch.from_numpy(is_item)
