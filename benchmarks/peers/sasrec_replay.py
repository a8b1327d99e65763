"""SASRec, as the library RePlay implements it.

Source: Kang and McAuley 2018, "Self-Attentive Sequential Recommendation". RePlay trains all places of a user's sequence at once,
with the cross-entropy over all items or over drawn items. A model is trained on the choices of the train split; at the test, a
sequence ends with the validation item.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from replay.data import FeatureHint, FeatureType
from replay.data.nn import TensorFeatureInfo, TensorSchema
from replay.models.nn.sequential.sasrec import SasRec

from benchmarks.list_measures import Lists, Matrix

USERS_PER_BATCH = 128
# More items than this: the cross-entropy is over the chosen item and items that are drawn with equal probabilities.
FULL_SOFTMAX_ITEMS = 5_000
DRAWN_ITEMS = 256


class SASRecPeer:
    """A model in training.

    Args:
        sequence, starts: the users' choices in the train split; see `Task` of benchmarks/list_task.py.
        items: number of items.
        setting: `width` of the vectors, `dropout`, and `places`, the number of last items that the model reads.
        seed: seed of first weights, dropout, drawn items and order of users.
    """

    def __init__(
        self, sequence: Lists, starts: Lists, items: int, setting: dict[str, Any], seed: int
    ) -> None:
        torch.manual_seed(seed)
        self._items, self._places = items, setting["places"]
        self._train = [sequence[first:last] for first, last in pairwise(starts)]
        self._users = torch.tensor([user for user, own in enumerate(self._train) if len(own) > 1])
        self._histories = self._train
        feature = TensorFeatureInfo(
            "item",
            feature_type=FeatureType.CATEGORICAL,
            is_seq=True,
            feature_hint=FeatureHint.ITEM_ID,
            cardinality=items,
            padding_value=items,
            embedding_dim=setting["width"],
        )
        self.module = SasRec(
            TensorSchema(feature),
            block_count=2,
            head_count=1,
            hidden_size=setting["width"],
            max_seq_len=self._places,
            dropout_rate=setting["dropout"],
            loss_type="CE",
            loss_sample_count=None if items <= FULL_SOFTMAX_ITEMS else DRAWN_ITEMS,
            negatives_sharing=True,  # a step draws the items once for all its places
        )
        self._optimizer = self.module.configure_optimizers()  # Adam

    def train_epoch(self) -> None:
        """Trains on the sequences of all users once, in a random order."""
        self.module.train()
        order = self._users[torch.randperm(len(self._users))]
        for step, users in enumerate(order.split(USERS_PER_BATCH)):
            ids, is_item = self._batch([self._train[user][:-1] for user in users.tolist()])
            labels, _ = self._batch([self._train[user][1:] for user in users.tolist()])
            batch = {
                "feature_tensor": {"item": ids},
                "padding_mask": is_item,
                "positive_labels": labels,
                "target_padding_mask": is_item,
            }
            self._optimizer.zero_grad()
            self.module.training_step(batch, step).backward()
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
        ids, is_item = self._batch(self._histories[users])
        with torch.no_grad():
            found = self.module.predict({"feature_tensor": {"item": ids}, "padding_mask": is_item})
        return found.double().numpy()

    def _batch(self, sequences: list[Lists]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the last items of sequences (B, L), padded at the start, and where there is an item (B, L)."""
        ids = np.full((len(sequences), self._places), self._items, np.int64)
        for row, own in enumerate(sequences):
            last = own[-self._places :]
            ids[row, self._places - len(last) :] = last
        return torch.from_numpy(ids), torch.from_numpy(ids != self._items)
