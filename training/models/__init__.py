"""Architectures by name: `training/models/<name>.py` contains the architecture `<name>`.

Modules listed in `_SHARED_MODULES` of training/settings are not architectures. The module of an architecture
has a function that builds the model from its settings (training/settings/<name>.py):

    build(settings: Settings, inputs: Inputs) -> nn.Module

The module may also be in another package, which names it by an entry point of the group `nightrank.models`
(docs/extending.md). The model takes

    dense        (B, D) float32, the spec's dense features in order
    categorical  (B, W) int32 or int64, ids in the layout of training/models/inputs.py

and returns logits (B,) float32. B is the number of rows, D the number of dense features, and W the number of
id columns; D or W may be 0. The model must compute its last layer with `in_float32`. Create embedding tables
with `inputs.table`: the gradients of such tables are summed row by row, while those of other parameters are
summed in one dense buffer. Call each table once per forward pass, and pass `categorical` to it unchanged.

If a model is a ClickModel (training/models/click_model.py), it can be compiled and recorded as a CUDA graph.
If a model has a method `factorize` (training/models/factorization.py), it scores lists of items faster
(docs/scoring.md), because the user part and the item part run only once each. All other models score one
joined row per pair of user and item.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import torch
from torch import nn

from conf.embedding_types import Embeddings
from conf.errors import ConfigError
from conf.types import ModelConfig
from storage.feature_spec import FeatureSpec
from training.distributed.collectives import ALONE, Collectives
from training.embeddings.table_factory import TableFactory
from training.embeddings.tiers import PlannedTable, Tiers
from training.models.inputs import Inputs
from training.settings import architecture_extension, complete, known_architectures, read_settings

__all__ = ["build_model", "complete", "known_architectures", "planned_tables", "read_settings"]


def build_model(
    config: ModelConfig,
    spec: FeatureSpec,
    seed: int = 0,
    embeddings: Embeddings | None = None,
    collectives: Collectives = ALONE,
    *,
    on_demand: bool = False,
    tiers: Tiers | None = None,
) -> nn.Module:
    """Builds and initialises a model. Equal seeds give equal weights on any number of ranks.

    Args:
        config: the architecture and its settings.
        spec: the features.
        seed: the seed of the random weights.
        embeddings: how tables are trained and spread over ranks; None puts all rows in this process.
        collectives: the collectives of the ranks that hold the tables.
        on_demand: whether table rows stay in the model's files until a lookup needs them, for scoring.
        tiers: which table rows are in host memory; None puts all rows on the device of the model.

    Raises:
        ConfigError: the architecture or its settings are not valid (see `complete`); or layers do not fit
            together; or the spec has no features; or a rank would hold more bytes of a table than
            `rank_max_bytes`.
    """
    tables = TableFactory(config.embedding_storage, embeddings or Embeddings(), collectives, on_demand, tiers)
    return _build(config, spec, seed, tables)


def planned_tables(
    config: ModelConfig, spec: FeatureSpec, embeddings: Embeddings, collectives: Collectives = ALONE
) -> list[PlannedTable]:
    """Returns the tables that `build_model` would create, in order, without creating their rows.

    Raises:
        ConfigError: see `build_model`.
    """
    tables = TableFactory(config.embedding_storage, embeddings, collectives, on_demand=True)
    _build(config, spec, 0, tables)
    return tables.planned


def _build(config: ModelConfig, spec: FeatureSpec, seed: int, tables: TableFactory) -> nn.Module:
    settings = read_settings(config)
    if not spec.features:
        raise ConfigError(
            "the feature spec has no features", "list the model's input columns under `features`"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _module(config).build(settings, Inputs.of(spec, config.multi_hot, tables))
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"the architecture {config.architecture} built a {type(model).__name__}, not a torch module",
            "let the build() of its module return an nn.Module",
        )
    return model


def _module(config: ModelConfig) -> ModuleType:
    """Returns the module of an architecture, in this folder or in another package."""
    extension = architecture_extension(config.architecture)
    if extension is None:
        return import_module(f"{__name__}.{config.architecture}")
    extension.member("build")
    return extension.load()
