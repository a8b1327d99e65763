"""Layers of models over sequences: which rows have equal sequences, dropout, noise, self-attention blocks.

Sequences of items are ordered from the most recent item to the oldest. PAD_ID fills the end.

Notation: B rows, S distinct sequences, L places of a sequence, E numbers per vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.feature_spec import PAD_ID
from training.models.layers import RandomLayer, linear

# A draw of 64 random bits is used for this number of values, with 16 bits each.
_NUMBERS_PER_DRAW = 4


def distinct_sequences(sequences: Tensor, starts: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Groups consecutive rows with equal sequences, such as a positive row and its drawn negatives.

    Args:
        sequences: (B, L) ids.
        starts: rows at which a new group begins even if the sequence is that of the row before.

    Returns:
        (S,) int64, the first row of each group, and (B,) int64, the group of each row.
    """
    if torch.compiler.is_exporting():  # no shape may depend on ids, so each row has a group of its own
        rows = torch.arange(sequences.shape[0], device=sequences.device)
        return rows, rows
    begins = torch.ones(len(sequences), dtype=torch.bool, device=sequences.device)
    begins[1:] = (sequences[1:] != sequences[:-1]).any(dim=1)
    begins[torch.tensor(starts, dtype=torch.int64, device=begins.device)] = True
    return begins.nonzero().flatten(), begins.cumsum(0) - 1


Encode = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]


@dataclass(frozen=True)
class LengthGroups:
    """Sequences grouped by their lengths, so that a short one is not computed with the places of a long one.

    The limits of lengths depend only on L, not on the other sequences of a batch. So random numbers that are
    drawn for a group do not depend on the number of ranks.

    Attributes:
        order: (S,) int64, the sequences, group after group; None if all are in one group.
        groups: number of places and number of sequences of each group that is not empty. Longer groups come
            later.
        longest: number of places of the last group; 1 without sequences.
    """

    order: Tensor | None
    groups: tuple[tuple[int, int], ...]
    longest: int

    @classmethod
    def of(cls, sequences: Tensor) -> LengthGroups:
        """Groups sequences (S, L) by length: at most L / 8, L / 4, L / 2 and L places."""
        count, places = sequences.shape
        if torch.compiler.is_exporting():  # no shape may depend on ids
            return cls(None, ((places, count),), places)
        limits = sorted({max(-(-places // share), 1) for share in (8, 4, 2, 1)})
        lengths = (sequences != PAD_ID).sum(dim=1)
        group = torch.bucketize(lengths, torch.tensor(limits, device=lengths.device))
        counts = torch.bincount(group, minlength=len(limits)).tolist()
        groups = tuple((limit, number) for limit, number in zip(limits, counts, strict=True) if number)
        order = group.argsort(stable=True) if len(groups) > 1 else None
        return cls(order, groups, groups[-1][0] if groups else 1)

    def encode(self, vectors: Tensor, is_item: Tensor, first_rows: Tensor | None, encode: Encode) -> Tensor:
        """Encodes the sequences of each group, with as many places as the group has.

        Args:
            vectors: (S, `longest`, E).
            is_item: (S, `longest`) bool, whether a place has an item.
            first_rows: (S,), the first row of each sequence in the batch; None if they are not trained.
            encode: returns one vector for each sequence, from these three arguments.

        Returns:
            (S, E), in the order of the sequences.
        """
        if self.order is None:
            return encode(vectors, is_item, first_rows)
        encoded = []
        for (places, _), rows in zip(
            self.groups, self.order.split([number for _, number in self.groups]), strict=True
        ):
            first = None if first_rows is None else first_rows[rows]
            encoded.append(encode(vectors[rows, :places], is_item[rows, :places], first))
        return torch.cat(encoded)[self.order.argsort()]


class RandomSequenceLayer(RandomLayer):
    """A layer that draws random numbers once for each distinct sequence of a logical shard.

    The numbers are drawn in the forward pass, when the distinct sequences are known.

    Attributes:
        shard_starts: the first row of each shard that has rows in the next batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seeds: list[int] = []
        self.shard_starts: list[int] = []

    def draw_mask(self, key: str, shards: range, rows: Sequence[int]) -> None:
        """Stores what the numbers of the next step depend on. See `RandomLayer.draw_mask`."""
        ends = torch.tensor([0, *rows]).cumsum(0).tolist()
        self.shard_starts = [start for start, count in zip(ends[:-1], rows, strict=True) if count]
        names = [f"{key}/{shard}" for shard, count in zip(shards, rows, strict=True) if count]
        self._seeds = [int.from_bytes(sha256(name.encode()).digest()[:7]) for name in names]

    def _draws(self, first_rows: Tensor | None) -> bool:
        """Returns whether the layer draws numbers for these sequences: in training only."""
        return self.training and first_rows is not None and bool(self._seeds) and bool(len(first_rows))

    def _of_shards(self, draws: Tensor, first_rows: Tensor) -> Iterator[tuple[Tensor, torch.Generator]]:
        """Yields the rows of `draws` (S, …) that belong to each shard, and a generator for them.

        The numbers depend on the step, the shard and the width of `draws`. So groups of sequences of
        different lengths get different numbers.
        """
        starts = torch.tensor([*self.shard_starts[1:], 2**62], device=first_rows.device)
        counts = torch.bincount(torch.bucketize(first_rows, starts, right=True), minlength=len(self._seeds))
        generator = torch.Generator(draws.device)
        for seed, part in zip(self._seeds, draws.split(counts.tolist()), strict=True):
            if len(part):
                yield part, generator.manual_seed(seed + draws.shape[1])


class SequenceDropout(RandomSequenceLayer):
    """Dropout of vectors of sequences, with masks that are independent of the number of ranks.

    Args:
        share: the share of the values that are dropped.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, values: Tensor, first_rows: Tensor | None = None) -> Tensor:
        """Returns the values (S, P, E); in training, some of them are set to 0.

        Args:
            values: the values of P places of S sequences. P must not depend on the number of ranks.
            first_rows: (S,) ascending, the first row of each sequence in the batch; only in training.
        """
        if not self.share or first_rows is None or not self._draws(first_rows):
            return values
        cells = -(-values[0].numel() // _NUMBERS_PER_DRAW)
        draws = torch.empty(len(values), cells, dtype=torch.int64, device=values.device)
        for part, generator in self._of_shards(draws, first_rows):
            part.random_(-(2**63), None, generator=generator)
        numbers = draws.view(torch.int16)[:, : values[0].numel()].reshape(values.shape)
        kept = numbers >= round(self.share * 2**16) - 2**15
        return values * kept.to(values.dtype).div_(1 - self.share)


class SequenceNoise(RandomSequenceLayer):
    """Standard normal noise for vectors of sequences, independent of the number of ranks; 0 in scoring."""

    def forward(self, like: Tensor, first_rows: Tensor | None) -> Tensor:
        """Returns the noise (S, K) float32.

        Args:
            like: (S, K), a tensor of the same shape, on the same device.
            first_rows: (S,) ascending, the first row of each sequence in the batch; None if they are not
                trained.
        """
        noise = torch.zeros(like.shape, device=like.device)
        if first_rows is not None and self._draws(first_rows):
            for part, generator in self._of_shards(noise, first_rows):
                part.normal_(generator=generator)
        return noise


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, heads: int) -> Tensor:
    """Returns attention of several heads, (S, Q, E): for each head, softmax(query keyᵀ / √(E / heads)) value.

    Args:
        query: (S, Q, E), of the places whose outputs are needed.
        key, value: (S, L, E), of all places.
        visible: (S, 1|Q, L) bool, the places to which a place attends; at least one.
        heads: number of heads. Each has E / heads successive numbers of a vector.
    """
    count, places, dim = query.shape

    def by_head(vectors: Tensor) -> Tensor:
        return vectors.view(count, -1, heads, dim // heads).transpose(1, 2)

    attended = functional.scaled_dot_product_attention(
        by_head(query), by_head(key), by_head(value), attn_mask=visible.unsqueeze(1)
    )  # (S, heads, Q, E / heads)
    return attended.transpose(1, 2).reshape(count, places, dim)


class CausalBlock(nn.Module):
    """A block of SASRec (Kang and McAuley, ICDM 2018, section III-B): self-attention, then an MLP per place.

        y = x + Dropout(Attention(LN(x), x, x)),  z = y + Dropout(W₂ ReLU(W₁ LN(y) + b₁) + b₂)

    A place attends to itself and to older items.

    Args:
        dim: E.
        heads: number of attention heads, a divisor of E.
        dropout: see `SequenceDropout`.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value = (linear(dim, dim, bias=False) for _ in range(3))
        self.inner, self.outer = linear(dim, dim), linear(dim, dim)
        self.attention_dropout, self.mlp_dropout = (SequenceDropout(dropout) for _ in range(2))

    def forward(self, values: Tensor, is_item: Tensor, first_rows: Tensor | None, outputs: int) -> Tensor:
        """Returns the outputs (S, outputs, E) of the first places: those of the most recent items.

        Args:
            values: (S, L, E), the inputs.
            is_item: (S, L) bool, whether a place has an item.
            first_rows: (S,), the first row of each sequence in the batch; None if they are not trained.
            outputs: number of places whose outputs are needed.
        """
        places = values.shape[1]
        needed = values[:, :outputs]
        own = torch.eye(outputs, places, dtype=torch.bool, device=values.device)
        older = torch.ones(outputs, places, dtype=torch.bool, device=values.device).triu()
        # Every place attends at least to itself, so that no sum of attention weights is 0 / 0.
        visible = (older & is_item.unsqueeze(1)) | own  # (S, outputs, L)
        query = self.query(self.attention_norm(needed))
        attended = attend(query, self.key(values), self.value(values), visible, self._heads)
        middle = needed + self.attention_dropout(attended, first_rows)
        hidden = self.outer(functional.relu(self.inner(self.mlp_norm(middle))))
        return middle + self.mlp_dropout(hidden, first_rows)


class BidirectionalBlock(nn.Module):
    """A block of BERT4Rec (Sun et al., CIKM 2019, equations 1 to 5): self-attention, then an MLP per place.

        y = LN(x + Dropout(W_O Attention(x, x, x))),  z = LN(y + Dropout(W₂ GELU(W₁ y + b₁) + b₂))

    A place attends to all places that are not padding. The MLP's hidden layer has 4 E numbers.

    Args:
        dim: E.
        heads: number of attention heads, a divisor of E.
        dropout: see `SequenceDropout`.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._heads = heads
        self.query, self.key, self.value, self.out = (linear(dim, dim, bias=False) for _ in range(4))
        self.inner, self.outer = linear(dim, 4 * dim), linear(4 * dim, dim)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention_dropout, self.mlp_dropout = (SequenceDropout(dropout) for _ in range(2))

    def forward(self, values: Tensor, is_visible: Tensor, first_rows: Tensor | None, outputs: int) -> Tensor:
        """Returns the outputs (S, outputs, E) of the first places.

        Args:
            values: (S, L, E), the inputs.
            is_visible: (S, L) bool, whether a place is not padding; at least one place of each sequence.
            first_rows: (S,), the first row of each sequence in the batch; None if they are not trained.
            outputs: number of places whose outputs are needed.
        """
        needed = values[:, :outputs]
        visible = is_visible.unsqueeze(1)  # (S, 1, L)
        attended = attend(self.query(needed), self.key(values), self.value(values), visible, self._heads)
        middle = self.attention_norm(needed + self.attention_dropout(self.out(attended), first_rows))
        hidden = self.outer(functional.gelu(self.inner(middle)))
        return self.mlp_norm(middle + self.mlp_dropout(hidden, first_rows))
