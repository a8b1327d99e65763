"""Exploration: draws candidates in a random order. The sort key is a hash of salt, user and item."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from conf.list_types import RuleSettings
from conf.raw_types import Seed
from scoring.rules.item_rule import ItemRule, RuleInputs

if TYPE_CHECKING:
    from torch import Tensor

_MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # multipliers of SplitMix64, as signed numbers
_SHIFTS = (30, 27, 31)


class Settings(RuleSettings):
    """A rule that fills the last ceil(share × k) positions of a list with items drawn from other candidates.

    These candidates would otherwise not be in the list. The items are chosen by a hash of seed, user, item
    and run date. So a rerun draws the same items, and another run date draws other items.
    """

    place: ClassVar[Literal["first", "middle", "last"]] = "last"
    keeps_draws: ClassVar[bool] = True
    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        description="Share of the k positions that are filled with drawn items."
    )
    seed: Seed = Field(default=0, description="Seed of the draws.")


@dataclass(frozen=True)
class Explored(ItemRule):
    """The draws of exploration.

    Attributes:
        positions: number of positions with items drawn at random.
        item_hashes: (N,) int64: the hash of each item key.
        salt: the salt of the hashes of user keys: the seed and the run date.
    """

    positions: int
    item_hashes: Tensor
    salt: str

    @property
    def drawn_positions(self) -> int:
        """Returns the number of positions at the end of a list that are filled with drawn items."""
        return self.positions

    def draw_keys(self, users: Sequence[str], items: Tensor) -> Tensor:
        """Returns random sort keys (U, W) int64, by which each user's items are drawn."""
        return draw_keys(text_hashes(users, self.salt).to(items.device), self.item_hashes[items])


def load(settings: Settings, inputs: RuleInputs) -> Explored:
    """Returns the rule that fills the last positions of lists with items drawn at random."""
    return Explored(
        positions_to_explore(settings.share, inputs.k),
        text_hashes(inputs.items.to_pylist()).to(inputs.device),
        f"{settings.seed}|{inputs.run_date}",
    )


def positions_to_explore(share: float, k: int) -> int:
    """Returns ceil(share × k): the number of positions of a list that are filled with items drawn at random.

    The product is rounded before ceil to remove floating-point errors. So a share of 0.1 and k = 30 give 3,
    not 4.
    """
    return math.ceil(round(share * k, 9))


def text_hashes(texts: Iterable[str], salt: str = "") -> Tensor:
    """Returns an int64 hash of each string in `texts`, shape (n,).

    The hash consists of the first 8 bytes of BLAKE2b of `salt`, a zero byte, and the string, concatenated.
    """
    start = blake2b(salt.encode() + b"\0", digest_size=8)
    digests = []
    for text in texts:
        digest = start.copy()
        digest.update(text.encode())
        digests.append(digest.digest())
    import torch

    return torch.from_numpy(np.frombuffer(b"".join(digests), dtype="<i8").copy())


def draw_keys(users: Tensor, items: Tensor) -> Tensor:
    """Returns a random sort key for each pair of user and item, shape (U, W), int64, in [-2**62, 2**62).

    The keys are uniformly distributed. A key is a hash of the user's hash and the item's hash: the upper 63
    bits of the last step (the finaliser) of SplitMix64. See G. Steele, D. Lea and C. Flood 2014, section 3.

    Args:
        users: (U,) int64 hashes of the users, which include the salt.
        items: (U, W) int64 hashes of the items.
    """
    mixed = users[:, None] ^ items
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        mixed = (mixed ^ _logical_shift(mixed, shift)) * multiplier
    return (mixed ^ _logical_shift(mixed, _SHIFTS[2])) >> 1


def _logical_shift(values: Tensor, by: int) -> Tensor:
    """Shifts int64 numbers to the right by `by` bits, as if they were unsigned."""
    return (values >> by) & ((1 << (64 - by)) - 1)
