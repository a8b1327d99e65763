"""Architectures by name: `training/models/<name>.py` is the architecture `<name>`, found without a list to maintain.

Such a module offers `build(config: ModelConfig, spec: FeatureSpec) -> nn.Module`. The module takes

    dense        (B, D) float32, the spec's dense features in order
    categorical  (B, C) int64, the spec's categorical ids in order

and returns logits (B,) float32. Either of D and C may be 0. Embedding tables are `StackedEmbedding`s: the loop sends
their gradients row by row and everything else as one dense buffer.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

import torch
from torch import nn

from conf.errors import ConfigError
from conf.feature_spec import FeatureSpec
from conf.types import ModelConfig


def known_architectures() -> list[str]:
    return sorted(each.name for each in pkgutil.iter_modules(__path__))


def build_model(config: ModelConfig, spec: FeatureSpec, seed: int = 0) -> nn.Module:
    """The freshly initialised model of a configuration: equal seeds give equal weights.

    Raises:
        ConfigError: there is no such architecture, its layers do not fit together, or the spec has no features.
    """
    known = known_architectures()
    if config.architecture not in known:
        raise ConfigError(
            f"model.architecture={config.architecture!r} does not exist; known: {known}",
            "name one of these, or add a module of that name to training/models",
        )
    if not spec.features:
        raise ConfigError(
            "the feature spec holds no features", "name the model's input columns under `features`"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = import_module(f"{__name__}.{config.architecture}").build(config, spec)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"training/models/{config.architecture}.py built a {type(model).__name__}, not a torch module",
            "let its build() return an nn.Module",
        )
    return model
