"""Mult-VAE, a variational autoencoder with a multinomial likelihood, as the library RecBole implements it.

Source: Liang et al. 2018, "Variational Autoencoders for Collaborative Filtering". The encoder and the decoder have one hidden
layer with tanh. For each user, the input is the set of chosen items, and the output is a score for each item. A model is
trained on the choices of the train split. For the test, the input also contains the validation item.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from recbole.model.general_recommender.multivae import MultiVAE
from scipy.sparse import csr_matrix

from benchmarks.list_measures import Matrix

USER, ITEM = "user", "item"
USERS_PER_BATCH = 256


class _Data:
    """What RecBole's models read from a data set of RecBole: the numbers of users and items, and the choices."""

    def __init__(self, choices: csr_matrix) -> None:
        self._choices = choices

    def num(self, field: str) -> int:
        """Returns the number of users or items."""
        return int(self._choices.shape[0 if field == USER else 1])

    def history_item_matrix(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns item ids (U, L) and their values (U, L) with zeros as padding, and the number of items (U,)."""
        counts = np.diff(self._choices.indptr)
        row, column = self._choices.nonzero()
        place = np.arange(len(row)) - np.repeat(self._choices.indptr[:-1], counts)
        shape = len(counts), max(counts.max(), 1)
        items, values = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        items[row, place], values[row, place] = column, 1
        return torch.from_numpy(items), torch.from_numpy(values), torch.from_numpy(counts.astype(np.int64))


class MultVAE:
    """A model in training.

    Args:
        train: (U, I), 1 where the user chose the item in the train split.
        setting: `latent`, the number of latent factors; `dropout` of the input; `anneal_cap`, the largest weight of the
            Kullback-Leibler divergence, which is reached after 20 epochs.
        seed: seed of first weights, dropout and order of users.
    """

    def __init__(self, train: csr_matrix, setting: dict[str, Any], seed: int) -> None:
        torch.manual_seed(seed)
        self._users = torch.from_numpy(np.flatnonzero(np.diff(train.indptr)))
        steps = -(-len(self._users) // USERS_PER_BATCH)
        # RecBole's weight of the divergence is the number of the step, divided by total_anneal_steps.
        anneal_steps = round(20 * steps / setting["anneal_cap"])
        config = {
            "USER_ID_FIELD": USER,
            "ITEM_ID_FIELD": ITEM,
            "NEG_PREFIX": "neg_",
            "device": torch.device("cpu"),
            "mlp_hidden_size": [600],
            "latent_dimension": 2 * setting["latent"],  # RecBole counts means and variances
            "dropout_prob": setting["dropout"],
            "anneal_cap": setting["anneal_cap"],
            "total_anneal_steps": anneal_steps,
        }
        self.module = MultiVAE(config, _Data(train))
        self._optimizer = torch.optim.Adam(self.module.parameters(), lr=1e-3)

    def train_epoch(self) -> None:
        """Trains on all users once, in a random order."""
        self.module.train()
        for users in self._users[torch.randperm(len(self._users))].split(USERS_PER_BATCH):
            self._optimizer.zero_grad()
            self.module.calculate_loss({USER: users}).backward()
            self._optimizer.step()

    def read(self, history: csr_matrix) -> None:
        """Sets the choices (U, I) that are the input of `scores`."""
        items, values, _ = _Data(history).history_item_matrix()
        self.module.history_item_id, self.module.history_item_value = items, values

    def scores(self, users: slice) -> Matrix:
        """Returns the scores (u, I) of all items for a range of users."""
        self.module.eval()
        chosen = torch.arange(self.module.n_users)[users]
        with torch.no_grad():
            found = self.module.full_sort_predict({USER: chosen}).view(len(chosen), -1)
        return found.double().numpy()
