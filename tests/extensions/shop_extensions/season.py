"""Season: moves the items of a season up, and leaves out those of a season that has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from nightrank.extending import ItemRule, RuleInputs, RuleSettings

if TYPE_CHECKING:
    from torch import Tensor


class Settings(RuleSettings):
    """A rule that moves the items of a season up. The key of an item begins with its season."""

    season: str = Field(description="Season whose items move up.")
    factor: float = Field(default=2.0, gt=0, description="Factor of the probability of these items.")
    ended: str | None = Field(default=None, description="Season whose items are left out. Null: none.")


@dataclass(frozen=True)
class Season(ItemRule):
    """The rule for N items: the factor of each item (float32), and whether it is left out (bool)."""

    factors: Tensor
    ended: Tensor

    def ranking_scores(self, scores: Tensor, items: Tensor) -> Tensor:
        """Returns the scores that items are ranked by."""
        return scores * self.factors[items]

    def allowed(self, items: Tensor, valid: Tensor) -> Tensor:
        """Returns which items may be in the list."""
        return ~self.ended[items]

    def moved(self) -> Tensor:
        """Returns the items whose list entries have the reason `rule:season`."""
        return self.factors != 1


def load(settings: Settings, inputs: RuleInputs) -> Season:
    """Returns the rule for the items of a run."""
    import torch

    keys = inputs.items.to_pylist()
    factors = [settings.factor if key.startswith(settings.season) else 1.0 for key in keys]
    ended = [settings.ended is not None and key.startswith(settings.ended) for key in keys]
    return Season(torch.tensor(factors).to(inputs.device), torch.tensor(ended).to(inputs.device))
