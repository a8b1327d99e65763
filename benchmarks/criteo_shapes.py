"""The shapes of a training step on Criteo's terabyte log: features, cardinalities and random batches.

NVIDIA published these cardinalities for the case that values with fewer than 15 occurrences share an id
(DeepLearningExamples, DLRM, variant `criteo_t15_synthetic` of its synthetic data). The cardinalities add up
to 32.7 million embedding rows, or 15.6 GiB with 128 float32 values per row. NVIDIA's synthetic data draw ids from a power law
with exponent 1.45, and so does this file. The smallest ids are the most frequent, because our workflow
assigns ids in the order of counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from storage.feature_spec import NUM_RESERVED_IDS, Feature, FeatureSpec
from training.data.batch import Batch

NUM_DENSE = 13
# fmt: off
CARDINALITIES = (
    7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11,
    2209, 10667, 104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35,
)
# fmt: on
EXPONENT = 1.45


def capped(most_rows: int | None) -> list[int]:
    """Returns the cardinalities, each limited to `most_rows`, so that tables fit on a small machine."""
    return [min(cardinality, most_rows or cardinality) for cardinality in CARDINALITIES]


def spec_of(cardinalities: Sequence[int]) -> FeatureSpec:
    """Returns the FeatureSpec of Criteo's columns I1 to I13 and C1 to C26 with the given cardinalities."""
    dense = [Feature(f"I{place}", "dense", "float32", "context") for place in range(1, NUM_DENSE + 1)]
    categorical = [
        Feature(f"C{place}", "categorical", "int32", "context", cardinality)
        for place, cardinality in enumerate(cardinalities, start=1)
    ]
    return FeatureSpec((*dense, *categorical), ("row_id",), "benchmark")


def draw_ids(rows: int, cardinalities: Sequence[int], generator: torch.Generator) -> Tensor:
    """Returns random ids (rows, C) int64. The probability of id k is about proportional to (k - 2)^-1.45.

    Reserved ids are not drawn, except for features whose cardinality does not exceed the number of reserved
    ids.
    """
    uniform = torch.rand(rows, len(cardinalities), generator=generator, dtype=torch.float64)
    reserved = torch.tensor(
        [NUM_RESERVED_IDS if cardinality > NUM_RESERVED_IDS else 0 for cardinality in cardinalities]
    )
    values = torch.tensor(list(cardinalities)) - reserved
    power = 1 - EXPONENT
    highest = (values + 1.0) ** power  # of the inverse distribution function on [1, values + 1)
    drawn = ((highest - 1) * uniform + 1) ** (1 / power)
    return drawn.long().sub_(1).clamp_(min=0).minimum(values - 1).add_(reserved)


def make_batches(count: int, rows: int, cardinalities: Sequence[int], seed: int = 0) -> list[Batch]:
    """Returns `count` random batches of `rows` rows on the CPU. A quarter of the rows are clicks."""
    generator = torch.Generator().manual_seed(seed)
    return [
        Batch(
            torch.randn(rows, NUM_DENSE, generator=generator),
            draw_ids(rows, cardinalities, generator),
            (torch.rand(rows, generator=generator) < 0.25).float(),
            torch.ones(rows),
            rows,
        )
        for _ in range(count)
    ]
