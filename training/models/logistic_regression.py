"""Logistic regression on the model's own input: a weight an id and a weight a dense feature. The baseline."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from conf.feature_spec import FeatureSpec
from conf.types import ModelConfig
from training.embedding import StackedEmbedding


class LogisticRegression(nn.Module):
    """logit = bias + Σ weight of each id + dense · weights; starts at zero, where the problem is convex anyway."""

    def __init__(self, num_dense: int, cardinalities: Sequence[int]) -> None:
        super().__init__()
        self.embedding = StackedEmbedding(cardinalities, 1)
        self.weights = nn.Parameter(torch.zeros(num_dense))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, C) int64."""
        return self.bias + self.embedding(categorical).sum(dim=(1, 2)) + dense @ self.weights


def build(config: ModelConfig, spec: FeatureSpec) -> LogisticRegression:
    """The baseline has no layers: of the configuration it uses nothing."""
    return LogisticRegression(len(spec.dense), spec.cardinalities)
