"""The code that the architectures in training/architectures share, and the function that builds a model."""

from __future__ import annotations

from threading import Lock
from types import ModuleType

import torch
from torch import nn

from conf.errors import ConfigError
from conf.plugins import MODEL
from conf.train_types import Embeddings
from conf.types import ModelConfig
from storage.feature_spec import FeatureSpec
from training.collectives import ALONE, Collectives
from training.embeddings.placement import PlannedTable, Tiers
from training.embeddings.table_factory import TableFactory
from training.models.inputs import Inputs
from training.settings import complete, known_architectures, read_settings

__all__ = ["build_model", "complete", "known_architectures", "planned_tables", "read_settings"]

# Layers draw their weights from torch's random generator, which all threads of the process share. So only one
# thread builds a model at a time. Otherwise the weights would depend on more than the seed.
_SEEDED = Lock()


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
        ConfigError: the architecture or its settings are not valid (see `complete`), or layers do not fit
            together. Also raised if the spec has no features, or if a rank would hold more bytes of a table
            than `rank_max_bytes`.
    """
    tables = TableFactory(config.embedding_storage, embeddings or Embeddings(), collectives, on_demand, tiers)
    return _build(config, spec, seed, tables)


def planned_tables(
    config: ModelConfig, spec: FeatureSpec, embeddings: Embeddings, collectives: Collectives = ALONE
) -> list[PlannedTable]:
    """Returns the tables that `build_model` would create, in its order, without creating their rows.

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
    with _SEEDED, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _module(config).build(settings, Inputs.of(spec, config.multi_hot, tables))
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"the architecture {config.architecture} built a {type(model).__name__}, not a torch module",
            "let the build() of its module return an nn.Module",
        )
    return model


def _module(config: ModelConfig) -> ModuleType:
    """Returns the module of an architecture, in this checkout or in another package."""
    plugin = MODEL.get(config.architecture)
    plugin.member("build")
    return plugin.load()
