"""SASRec in plain torch: all places of a user's sequence at once, with a sampled softmax.

Source: Kang and McAuley 2018, "Self-Attentive Sequential Recommendation" (ICDM), sections III and IV-D, with the loss of our
comparison: the softmax of the next item among itself and items drawn for each place. A batch has the sequences of some
users, padded at the left to the longest one of the batch. This is how a data scientist would write it, and how libraries
train the model.

Notation: B sequences, L places, E numbers per vector, N drawn items for each place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.plain_movielens import Adam

_DEVIATION = 0.02


class Block(nn.Module):
    """Self-attention to earlier places, then an MLP per place."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor, visible: Tensor) -> Tensor:
        """Returns (B, L, E) from values (B, L, E) and the places that each place sees (B, L, L)."""
        attended = functional.scaled_dot_product_attention(
            self.query(self.attention_norm(values)),
            self.key(values),
            self.value(values),
            attn_mask=visible,
        )
        middle = values + self.dropout(attended)
        return middle + self.dropout(self.outer(functional.relu(self.inner(self.mlp_norm(middle)))))


class SASRec(nn.Module):
    """The model. The number 0 of a sequence is the padding."""

    def __init__(self, items: int, places: int, dim: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.items = nn.Parameter(torch.empty(items + 1, dim).normal_(std=_DEVIATION))
        self.places = nn.Parameter(torch.empty(places, dim).normal_(std=_DEVIATION))
        self.blocks = nn.ModuleList(Block(dim, dropout) for _ in range(blocks))
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)

    def forward(self, sequences: Tensor) -> Tensor:
        """Returns the vectors (B, L, E) after each place of sequences (B, L)."""
        length, dim = sequences.shape[1], self.items.shape[1]
        is_item, device = sequences > 0, sequences.device
        visible = torch.ones(length, length, dtype=torch.bool, device=device).tril() & is_item.unsqueeze(1)
        visible = visible | torch.eye(length, dtype=torch.bool, device=device)
        vectors = functional.embedding(sequences, self.items) * math.sqrt(dim)
        values = self.dropout((vectors + self.places[-length:]) * is_item.unsqueeze(2))
        for block in self.blocks:
            values = block(values, visible)
        encoded: Tensor = self.norm(values)
        return encoded


def train_epoch(
    model: SASRec,
    optimizer: Adam,
    sequences: Sequence[NDArray[np.int64]],
    *,
    batch: int,
    drawn: int,
    rate: float,
    random: np.random.Generator,
) -> float:
    """Trains on each place of each sequence once. Returns the mean loss of the last batch.

    Args:
        model: the model.
        optimizer: its optimizer.
        sequences: the items of each user, from 1, in the order of their times.
        batch: number of sequences in a step.
        drawn: number of drawn items for each place.
        rate: the learning rate.
        random: orders the sequences and draws the items.
    """
    places, loss, device = len(model.places), torch.zeros(()), model.places.device
    order = random.permutation(len(sequences))
    for start in range(0, len(order), batch):
        chosen = [sequences[user][-places - 1 :] for user in order[start : start + batch]]
        longest = max(len(own) for own in chosen) - 1
        inputs, targets = (np.zeros((len(chosen), longest), np.int64) for _ in range(2))
        for row, own in enumerate(chosen):
            inputs[row, longest - len(own) + 1 :] = own[:-1]
            targets[row, longest - len(own) + 1 :] = own[1:]
        known = targets > 0
        encoded = model(_moved(inputs, device))[_moved(known, device)]  # (places with an item, E)
        positive = targets[known]
        others = random.integers(1, len(model.items), (len(positive), drawn))
        candidates = functional.embedding(
            _moved(np.concatenate([positive[:, None], others], axis=1), device), model.items
        )
        logits = (candidates @ encoded.unsqueeze(2)).squeeze(2)
        first = torch.zeros(len(logits), dtype=torch.int64, device=device)
        loss = functional.cross_entropy(logits, first)
        optimizer.step(torch.autograd.grad(loss, list(model.parameters())), rate)
    return float(loss.detach())


def _moved(values: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)
