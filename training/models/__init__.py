"""Architectures by name: `training/models/<name>.py` is the architecture `<name>`, found without a list to maintain.

Such a module offers the model made of its settings (training/settings/<name>.py), and no other file knows of it:

    build(settings: Settings, inputs: Inputs) -> nn.Module

The model takes

    dense        (B, D) float32, the spec's dense features in order
    categorical  (B, W) int32 or int64, ids as training/models/inputs.py lays them out

and returns logits (B,) float32, its last layer computed `in_float32`. Either of D and W may be 0. Embedding tables come from
`inputs.table`: the loop sends their gradients row by row and everything else as one dense buffer. Each table is called once,
with `categorical` as it came, which is good for nothing else: the loop may look up first and compile or record what follows.

A model may have a method `split` (training/models/factorization.py), which cuts it into what hangs on the user, on the item, and on both: then
lists are scored with each side computed once (docs/scoring.md). Without it they are scored on joined rows.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import torch
from torch import nn

from conf.errors import ConfigError
from conf.types import Embeddings, ModelConfig
from storage.feature_spec import FeatureSpec
from training.distributed.collectives import ALONE, Collectives
from training.embeddings.table_factory import TableFactory
from training.models.inputs import Inputs
from training.settings import complete, known_architectures, read_settings

__all__ = ["build_model", "complete", "known_architectures", "read_settings"]


def build_model(
    config: ModelConfig,
    spec: FeatureSpec,
    seed: int = 0,
    embeddings: Embeddings | None = None,
    collectives: Collectives = ALONE,
) -> nn.Module:
    """The freshly initialised model of a configuration: equal seeds give equal weights, however many ranks hold them.

    Args:
        embeddings: how tables are trained and spread over ranks; None holds them all here.
        collectives: of the ranks they are spread over.

    Raises:
        ConfigError: as `complete`; its layers do not fit together; the spec has no features; or a rank's tables are
            larger than they may be.
    """
    settings = read_settings(config)
    if not spec.features:
        raise ConfigError(
            "the feature spec holds no features", "name the model's input columns under `features`"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        keeping = TableFactory(config.embedding_storage, embeddings or Embeddings(), collectives)
        model = _module(config).build(settings, Inputs.of(spec, config.multi_hot, keeping))
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"training/models/{config.architecture}.py built a {type(model).__name__}, not a torch module",
            "let its build() return an nn.Module",
        )
    return model


def _module(config: ModelConfig) -> ModuleType:
    return import_module(f"{__name__}.{config.architecture}")
