"""Layers of models over sequences: groups of equal sequences, dropout, noise, and self-attention blocks.

If a sequence extends the previous sequence by one item, both are parts of one timeline (`Timelines`). A block
of self-attention then computes keys and values once for each item of the timeline.

Sequences of items are ordered from the most recent item to the oldest. PAD_ID fills the end.

Notation: B rows, S distinct sequences, L positions in a sequence, E numbers per vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.feature_spec import PAD_ID
from training.models.layers import RandomLayer, linear

# A draw of 64 random bits is divided into this many values of 16 bits.
_NUMBERS_PER_DRAW = 4


def distinct_sequences(sequences: Tensor, starts: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Groups consecutive rows with equal sequences, such as a positive row and its drawn negatives.

    Args:
        sequences: (B, L) ids.
        starts: rows at which a new group begins even if the previous row has the same sequence.

    Returns:
        (S,) int64, the first row of each group, and (B,) int64, the group of each row.
    """
    # In an exported program, no shape may depend on ids, so each row is a group of its own.
    if torch.compiler.is_exporting():
        rows = torch.arange(sequences.shape[0], device=sequences.device)
        return rows, rows
    begins = torch.ones(len(sequences), dtype=torch.bool, device=sequences.device)
    begins[1:] = (sequences[1:] != sequences[:-1]).any(dim=1)
    begins[torch.tensor(starts, dtype=torch.int64, device=begins.device)] = True
    return begins.nonzero().flatten(), begins.cumsum(0) - 1


Encode = Callable[[Tensor, Tensor, "Tensor | None", "Tensor | None"], Tensor]


@dataclass(frozen=True)
class LengthGroups:
    """Sequences grouped by length, so that short sequences are not computed with the padding of long ones.

    Each group has a limit for the length. The limits depend only on L, not on the other sequences of a batch.
    So random numbers that are drawn for a group do not depend on the number of ranks.

    Attributes:
        order: (S,) int64, the indices of the sequences, ordered by group; None if all are in one group.
        groups: for each group that is not empty, its number of positions and its number of sequences. Groups
            with more positions come later.
        longest: number of positions of the last group; 1 if there are no sequences.
    """

    order: Tensor | None
    groups: tuple[tuple[int, int], ...]
    longest: int

    @classmethod
    def of(cls, sequences: Tensor) -> LengthGroups:
        """Groups sequences (S, L) by length: at most L / 8, L / 4, L / 2 and L positions."""
        count, places = sequences.shape
        if torch.compiler.is_exporting():  # in an exported program, no shape may depend on ids
            return cls(None, ((places, count),), places)
        limits = sorted({max(-(-places // share), 1) for share in (8, 4, 2, 1)})
        lengths = (sequences != PAD_ID).sum(dim=1)
        group = torch.bucketize(lengths, torch.tensor(limits, device=lengths.device))
        counts = torch.bincount(group, minlength=len(limits)).tolist()
        groups = tuple((limit, number) for limit, number in zip(limits, counts, strict=True) if number)
        order = group.argsort(stable=True) if len(groups) > 1 else None
        return cls(order, groups, groups[-1][0] if groups else 1)

    def encode(
        self,
        vectors: Tensor,
        is_item: Tensor,
        first_rows: Tensor | None,
        encode: Encode,
        ages: Tensor | None = None,
    ) -> Tensor:
        """Encodes the sequences of each group, after cutting them to the group's number of positions.

        Args:
            vectors: (S, `longest`, E).
            is_item: (S, `longest`) bool, whether a position has an item.
            first_rows: (S,), the first row of each sequence in the batch; None outside of training.
            encode: returns one vector for each sequence, from `vectors`, `is_item`, `first_rows` and `ages`.
            ages: (S, at least `longest`), the id of the age of each item; None if the model reads no ages.

        Returns:
            (S, E), in the order of the sequences.
        """
        if ages is not None:
            ages = ages[:, : self.longest]
        if self.order is None:
            return encode(vectors, is_item, first_rows, ages)
        encoded = []
        for (places, _), rows in zip(
            self.groups, self.order.split([number for _, number in self.groups]), strict=True
        ):
            first = None if first_rows is None else first_rows[rows]
            of_group = None if ages is None else ages[rows, :places]
            encoded.append(encode(vectors[rows, :places], is_item[rows, :places], first, of_group))
        return torch.cat(encoded)[self.order.argsort()]


# Largest number of successive sequences in a tile (see `Timelines`). Without this limit, the number of
# attention scores would grow with the square of the number of sequences.
TILE_ROWS = 32


@dataclass(frozen=True)
class Timelines:
    """Sequences as parts of timelines, so that items that successive sequences share are encoded once.

    If a user chooses an item, the next history has this item and the items before it. If these are more than
    L items, the oldest is dropped. So the histories of successive choices are parts of one list of items, a
    timeline. A tile has up to `TILE_ROWS` successive sequences of one logical shard. Which sequences share a
    timeline depends only on the shard, so it does not depend on the number of ranks.

    Notation: T items in all timelines, K tiles. Q and M are the largest numbers of sequences and of items in
    a tile.

    Attributes:
        items: (T,) int64, the ids of the items, ordered by tile. The items of a timeline are adjacent, the
            oldest first.
        first_rows: (T,) int64, the first row of the sequence that adds the item to its timeline.
        places: (T,) int64, the position of each item in the flattened (K, M) matrix of the tiles' items.
        newest: (S,) int64, the position of each sequence's most recent item in this flattened matrix. For
            an empty sequence, the value has no meaning.
        rows: (S,) int64, the position of each sequence in the flattened (K, Q) matrix of the tiles'
            sequences.
        distances: (K, Q, M) int64, the distance of each item of the tile from the most recent item of each
            sequence; negative for later items.
        lengths: (K, Q) int64, the number of items of each sequence; 0 at positions without a sequence.
    """

    items: Tensor
    first_rows: Tensor
    places: Tensor
    newest: Tensor
    rows: Tensor
    distances: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, sequences: Tensor, first_rows: Tensor, shard_starts: Sequence[int]) -> Timelines:
        """Finds the timelines of S sequences. Successive sequences of a shard must differ.

        Args:
            sequences: (S, L) ids.
            first_rows: (S,) int64 ascending, the first row of each sequence in the batch.
            shard_starts: the first row of each logical shard in the batch.
        """
        count, device = sequences.shape[0], sequences.device
        number = torch.arange(count, device=device)
        starts = torch.tensor(shard_starts[1:], dtype=torch.int64, device=device)
        shard = torch.bucketize(first_rows, starts, right=True)
        first_of_shard = torch.searchsorted(shard, shard)
        begins = (number - first_of_shard) % TILE_ROWS == 0  # (S,), whether a tile begins here
        tile = begins.cumsum(0) - 1
        is_item = sequences != PAD_ID
        lengths = is_item.sum(dim=1)
        adds_one = (sequences[1:, 1:] == sequences[:-1, :-1]).all(dim=1) & is_item[1:, 0]
        added = lengths.clone()  # (S,), the number of items that a sequence adds to its timeline
        added[1:] = torch.where(adds_one & ~begins[1:], 1, lengths[1:])
        ends = added.cumsum(0)
        first_number = begins.nonzero().squeeze(1)  # (K,)
        first_item = (ends - added)[first_number]
        local = number - first_number[tile]
        newest = (ends - 1 - first_item[tile]).clamp(min=0)  # (S,), position in the tile
        total = ends[-1:]
        items_of_tile = torch.cat([first_item[1:], total]) - first_item
        tiles = first_number.shape[0]
        most_items, most_rows = torch.stack([items_of_tile.max(), local.max() + 1]).tolist()
        width = max(most_items, 1)
        rows = tile * most_rows + local
        of_rows = torch.stack([newest, lengths])
        newest_of_places, lengths_of_places = (
            of_rows.new_zeros(2, tiles * most_rows).index_copy_(1, rows, of_rows).view(2, tiles, most_rows)
        )
        distances = newest_of_places.unsqueeze(2) - torch.arange(width, device=device)
        # The oldest item of a row comes first, as in a timeline.
        place = torch.arange(sequences.shape[1] - 1, -1, -1, device=device)
        is_added = place < added.unsqueeze(1)  # (S, L)
        items = sequences.flip(1)[is_added].long()
        of_item = number.repeat_interleave(added, output_size=items.shape[0])
        tile_of_item = tile[of_item]
        order = torch.arange(items.shape[0], device=device)
        return cls(
            items=items,
            first_rows=first_rows[of_item],
            places=tile_of_item * width + order - first_item[tile_of_item],
            newest=tile * width + newest,
            rows=rows,
            distances=distances,
            lengths=lengths_of_places,
        )


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
        """Stores the seeds of the next step's random numbers. See `RandomLayer.draw_mask`."""
        ends = torch.tensor([0, *rows]).cumsum(0).tolist()
        self.shard_starts = [start for start, count in zip(ends[:-1], rows, strict=True) if count]
        names = [f"{key}/{shard}" for shard, count in zip(shards, rows, strict=True) if count]
        self._seeds = [int.from_bytes(sha256(name.encode()).digest()[:7]) for name in names]

    def _draws(self, first_rows: Tensor | None) -> bool:
        """Returns whether the layer draws random numbers for these sequences. It does so only in training."""
        return self.training and first_rows is not None and bool(self._seeds) and bool(len(first_rows))

    def _of_shards(self, draws: Tensor, first_rows: Tensor) -> Iterator[tuple[Tensor, torch.Generator]]:
        """Yields, for each shard, its rows of `draws` (S, …) and a random generator for these rows.

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
            values: the values of P positions of S sequences. P must not depend on the number of ranks.
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
            first_rows: (S,) ascending, the first row of each sequence in the batch; None outside of training.
        """
        noise = torch.zeros(like.shape, device=like.device)
        if first_rows is not None and self._draws(first_rows):
            for part, generator in self._of_shards(noise, first_rows):
                part.normal_(generator=generator)
        return noise


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, heads: int) -> Tensor:
    """Returns attention of several heads, (S, Q, E): for each head, softmax(query keyᵀ / √(E / heads)) value.

    Args:
        query: (S, Q, E), the queries of the positions whose outputs are needed.
        key, value: (S, L, E), of all positions.
        visible: (S, 1|Q, L) bool, the positions to which a position attends, which must be at least one.
        heads: number of heads. Each head uses E / heads successive numbers of a vector.
    """
    count, places, dim = query.shape

    def by_head(vectors: Tensor) -> Tensor:
        return vectors.view(count, -1, heads, dim // heads).transpose(1, 2)

    attended = functional.scaled_dot_product_attention(
        by_head(query), by_head(key), by_head(value), attn_mask=visible.unsqueeze(1)
    )  # (S, heads, Q, E / heads)
    return attended.transpose(1, 2).reshape(count, places, dim)


class CausalBlock(nn.Module):
    """A block of SASRec (Kang and McAuley, ICDM 2018, section III-B): self-attention and an MLP per position.

        y = x + Dropout(Attention(LN(x), x, x)),  z = y + Dropout(W₂ ReLU(W₁ LN(y) + b₁) + b₂)

    A position attends to itself and to older items.

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
        """Returns the outputs (S, outputs, E) of the first positions, which have the most recent items.

        Args:
            values: (S, L, E), the inputs.
            is_item: (S, L) bool, whether a position has an item.
            first_rows: (S,), the first row of each sequence in the batch; None outside of training.
            outputs: number of positions whose outputs are needed.
        """
        places = values.shape[1]
        needed = values[:, :outputs]
        own = torch.eye(outputs, places, dtype=torch.bool, device=values.device)
        older = torch.ones(outputs, places, dtype=torch.bool, device=values.device).triu()
        # Every position attends at least to itself, so that no sum of attention weights is 0 / 0.
        visible = (older & is_item.unsqueeze(1)) | own  # (S, outputs, L)
        query = self.query(self.attention_norm(needed))
        attended = attend(query, self.key(values), self.value(values), visible, self._heads)
        return self._after_attention(needed, attended, first_rows)

    def forward_timelines(
        self,
        newest: Tensor,
        items: Tensor,
        positions: Tensor,
        timelines: Timelines,
        first_rows: Tensor | None,
    ) -> Tensor:
        """Returns the output (S, E) for the most recent item of each sequence.

        The output equals that of `forward` for the inputs m_p + P[p]. m_p is the vector of the item at
        position p, and P[p] is the vector of that position. Positions are counted from the most recent item.
        Keys and values are linear in the inputs. So they are computed separately for items and for positions,
        and each item has one key for all sequences.

        Args:
            newest: (S, E), the inputs of the most recent items, with P[0].
            items: (K, M, E), the vectors m of the items of each tile.
            positions: (L, E), P.
            timelines: the sequences.
            first_rows: (S,), the first row of each sequence in the batch; None outside of training.
        """
        dim, heads = newest.shape[1], self._heads
        tiles, rows, width = timelines.distances.shape
        length = positions.shape[0]

        def by_head(vectors: Tensor) -> Tensor:
            return vectors.unflatten(-1, (heads, dim // heads)).transpose(-2, -3)

        query = self.query(self.attention_norm(newest))
        query = query.new_zeros(tiles * rows, dim).index_copy(0, timelines.rows, query)
        query = by_head(query.view(tiles, rows, dim)) / math.sqrt(dim // heads)  # (K, heads, Q, E / heads)
        keys, values = by_head(self.key(items)), by_head(self.value(items))
        place_keys, place_values = by_head(self.key(positions)), by_head(self.value(positions))
        distances, lengths = timelines.distances.unsqueeze(1), timelines.lengths[:, None, :, None]
        visible = (distances >= 0) & (distances < lengths)
        # A position without items attends to all positions, so that no sum of attention weights is 0 / 0.
        visible = visible | (lengths == 0)
        of_items = distances.clamp(0, length - 1).expand(-1, heads, -1, -1)
        scores = query @ keys.transpose(-1, -2) + (query @ place_keys.transpose(-1, -2)).gather(3, of_items)
        weights = scores.float().masked_fill(~visible, -torch.inf).softmax(dim=-1).to(values.dtype)
        # Order the attention weights by position. The position is the item's distance from the most recent
        # item.
        place = torch.arange(length, device=newest.device)
        of_places = (distances[..., :1] - place).clamp(0, width - 1).expand(-1, heads, -1, -1)
        by_place = weights.gather(3, of_places) * (place < lengths)  # (K, heads, Q, L)
        attended = weights @ values + by_place @ place_values
        attended = attended.transpose(1, 2).reshape(tiles * rows, dim)[timelines.rows]
        return self._after_attention(newest, attended, first_rows)

    def _after_attention(self, inputs: Tensor, attended: Tensor, first_rows: Tensor | None) -> Tensor:
        middle = inputs + self.attention_dropout(attended, first_rows)
        hidden = self.outer(functional.relu(self.inner(self.mlp_norm(middle))))
        return middle + self.mlp_dropout(hidden, first_rows)


class PointwiseBlock(nn.Module):
    """A block of HSTU (Zhai et al., ICML 2024, equations 1 to 3): gated attention without a softmax.

        U, V, Q, K = SiLU(W x̂),  x̂ = LN(x)
        y = x + W₂ Dropout(LN(A V) ⊙ U) + b₂,  A = SiLU(Q Kᵀ + d + t) / L

    A position attends to itself and to older items. The bias d is learned for each distance between two
    positions. If the model reads ages, the bias t is learned for each pair of the ages of two items. L is the
    largest length of a history, so a weight does not depend on the other items of a history.

    The paper divides the logarithm of the time between two items into ranges, and learns one t for each
    range. Here an age is such a range of the time between an item and the most recent item. The encoded
    history is the output of the most recent item, for which both definitions give the same value.

    Args:
        dim: E.
        heads: number of attention heads, a divisor of E. All heads have the same biases.
        dropout: see `SequenceDropout`.
        length: L.
        num_ages: number of different age ids; 0 if the model reads no ages.
    """

    def __init__(self, dim: int, heads: int, dropout: float, length: int, num_ages: int = 0) -> None:
        super().__init__()
        self._heads, self._length = heads, length
        # `eps` is not much smaller than 1 / L², because attention weights can be close to 0. With a smaller
        # `eps`, a small change of such a weight could flip the sign of the output, above all for a history of
        # one item.
        self.norm, self.attention_norm = nn.LayerNorm(dim), nn.LayerNorm(dim, eps=length**-2)
        self.gate, self.value, self.query, self.key = (linear(dim, dim, bias=False) for _ in range(4))
        self.distance_bias = nn.Parameter(torch.empty(length).normal_(std=0.02))
        if num_ages:
            self.age_bias = nn.Parameter(torch.empty(num_ages, num_ages).normal_(std=0.02))
        self.out = linear(dim, dim)
        self.dropout = SequenceDropout(dropout)

    def forward(
        self,
        values: Tensor,
        is_item: Tensor,
        first_rows: Tensor | None,
        outputs: int,
        ages: Tensor | None = None,
    ) -> Tensor:
        """Returns the outputs (S, outputs, E) of the first positions: those of the most recent items.

        Args:
            values: (S, P, E), the inputs.
            is_item: (S, P) bool, whether a position has an item.
            first_rows: (S,), the first row of each sequence in the batch; None outside of training.
            outputs: number of positions whose outputs are needed.
            ages: (S, P), the id of the age of each item; None if the model reads no ages.
        """
        inputs = self.norm(values)
        place = torch.arange(values.shape[1], device=values.device)
        distances = place - place[:outputs].unsqueeze(1)  # (outputs, P)
        visible = (distances >= 0) & is_item.unsqueeze(1)  # (S, outputs, P)
        needed = inputs[:, :outputs]
        bias = self.distance_bias[distances.clamp(min=0)]
        if ages is not None:
            bias = bias + self._of_ages(ages[:, :outputs].unsqueeze(2), ages.unsqueeze(1))
        attended = self._attend(
            self._silu(self.query, needed),
            self._silu(self.key, inputs),
            self._silu(self.value, inputs),
            bias,
            visible,
        )
        return self._after_attention(values[:, :outputs], needed, attended, first_rows)

    def forward_timelines(
        self,
        newest: Tensor,
        items: Tensor,
        timelines: Timelines,
        first_rows: Tensor | None,
        ages: Tensor | None = None,
    ) -> Tensor:
        """Returns the outputs (S, E) of the most recent item of each sequence.

        Args:
            newest: (S, E), the inputs of the most recent items.
            items: (K, M, E), the inputs of the items of each tile.
            timelines: the sequences.
            first_rows: (S,), the first row of each sequence in the batch; None outside of training.
            ages: (S, L), the id of the age of each item; None if the model reads no ages.
        """
        dim = newest.shape[1]
        tiles, rows, _ = timelines.distances.shape
        needed, inputs = self.norm(newest), self.norm(items)
        query = self._silu(self.query, needed)
        query = query.new_zeros(tiles * rows, dim).index_copy(0, timelines.rows, query)
        distances = timelines.distances
        place = distances.clamp(0, self._length - 1)
        bias = self.distance_bias[place]
        if ages is not None:
            by_place = self._of_ages(ages[:, :1], ages)  # (S, L)
            by_place = by_place.new_zeros(tiles * rows, self._length).index_copy(0, timelines.rows, by_place)
            bias = bias + by_place.view(tiles, rows, self._length).gather(2, place)
        attended = self._attend(
            query.view(tiles, rows, dim),
            self._silu(self.key, inputs),
            self._silu(self.value, inputs),
            bias,
            (distances >= 0) & (distances < timelines.lengths.unsqueeze(2)),
        )
        attended = attended.view(tiles * rows, dim)[timelines.rows]
        return self._after_attention(newest, needed, attended, first_rows)

    def _of_ages(self, newer: Tensor, older: Tensor) -> Tensor:
        """Returns t for pairs of items, from the ids of their ages.

        The shapes of both arguments are broadcast.
        """
        return self.age_bias.flatten()[newer.long() * self.age_bias.shape[1] + older]

    def _silu(self, layer: nn.Module, values: Tensor) -> Tensor:
        projected: Tensor = layer(values)
        return functional.silu(projected)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, visible: Tensor) -> Tensor:
        """Returns A V of all heads, (S, Q, E).

        Args:
            query: (S, Q, E).
            key, value: (S, P, E).
            bias: (Q, P) or (S, Q, P), added to the products of queries and keys.
            visible: (S, Q, P) bool, the positions to which a position attends. All other positions have the
                weight 0.
        """
        count, places, dim = query.shape

        def by_head(vectors: Tensor) -> Tensor:
            return vectors.view(count, -1, self._heads, dim // self._heads).transpose(1, 2)

        of_all_heads = bias if bias.dim() == 2 else bias.unsqueeze(1)
        scores = by_head(query) @ by_head(key).transpose(2, 3) + of_all_heads  # (S, heads, Q, P)
        weights = (functional.silu(scores) / self._length).masked_fill(~visible.unsqueeze(1), 0)
        attended = weights.to(value.dtype) @ by_head(value)
        return attended.transpose(1, 2).reshape(count, places, dim)

    def _after_attention(
        self, inputs: Tensor, normed: Tensor, attended: Tensor, first_rows: Tensor | None
    ) -> Tensor:
        gated = self.attention_norm(attended) * self._silu(self.gate, normed)
        output: Tensor = self.out(self.dropout(gated, first_rows))
        return inputs + output


class BidirectionalBlock(nn.Module):
    """A block of BERT4Rec (Sun et al., CIKM 2019, equations 1 to 5): self-attention and an MLP per position.

        y = LN(x + Dropout(W_O Attention(x, x, x))),  z = LN(y + Dropout(W₂ GELU(W₁ y + b₁) + b₂))

    A position attends to all positions that are not padding. The MLP's hidden layer has 4 E numbers.

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
        """Returns the outputs (S, outputs, E) of the first positions.

        Args:
            values: (S, L, E), the inputs.
            is_visible: (S, L) bool, whether a position is not padding; true at least once in each sequence.
            first_rows: (S,), the first row of each sequence in the batch; None outside of training.
            outputs: number of positions whose outputs are needed.
        """
        needed = values[:, :outputs]
        visible = is_visible.unsqueeze(1)  # (S, 1, L)
        attended = attend(self.query(needed), self.key(values), self.value(values), visible, self._heads)
        middle = self.attention_norm(needed + self.attention_dropout(self.out(attended), first_rows))
        hidden = self.outer(functional.gelu(self.inner(middle)))
        return self.mlp_norm(middle + self.mlp_dropout(hidden, first_rows))
