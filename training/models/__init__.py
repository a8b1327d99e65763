"""Architectures by name: `training/models/<name>.py` is the architecture `<name>`, found without a list to maintain.

Such a module offers its settings and the model made of them, and no other file knows of it:

    class Settings(Strict)                                          every key its YAML may hold beside architecture and multi_hot
    build(settings: Settings, inputs: Inputs) -> nn.Module

The model takes

    dense        (B, D) float32, the spec's dense features in order
    categorical  (B, W) int32 or int64, ids as training/inputs.py lays them out

and returns logits (B,) float32, its last layer computed `in_float32`. Either of D and W may be 0. Embedding tables come from
`inputs.table`: the loop sends their gradients row by row and everything else as one dense buffer. Each table is called once,
with `categorical` as it came, which is good for nothing else: the loop may look up first and compile or record what follows.

A model may have a method `split` (training/split.py), which cuts it into what hangs on the user, on the item, and on both: then
lists are scored with each side computed once (docs/scoring.md). Without it they are scored on joined rows.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

import torch
from torch import nn

from conf.errors import ConfigError
from conf.feature_spec import FeatureSpec
from conf.load import read_section
from conf.types import Embeddings, ModelConfig, Strict
from training.collectives import ALONE, Collectives
from training.embedding.keeping import Keeping
from training.inputs import Inputs


def known_architectures() -> list[str]:
    return sorted(each.name for each in pkgutil.iter_modules(__path__))


def complete(config: ModelConfig) -> ModelConfig:
    """The configuration with every setting of its architecture, defaults included: what a model's description keeps.

    Raises:
        ConfigError: there is no such architecture, a key is none of its settings, or a value breaks its rule.
    """
    values = read_settings(config).model_dump(mode="json")
    return ModelConfig(
        architecture=config.architecture,
        multi_hot=config.multi_hot,
        embedding_storage=config.embedding_storage,
        **values,
    )


def read_settings(config: ModelConfig) -> Strict:
    """The typed settings of a configuration; raises as `complete` does."""
    kind: type[Strict] = _module(config).Settings
    return read_section(
        kind,
        config.settings,
        f"architecture {config.architecture}: ",
        f"its settings are {sorted(kind.model_fields)}; correct these keys in the model's file or in --set",
        ("model",),
    )


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
        keeping = Keeping(config.embedding_storage, embeddings or Embeddings(), collectives)
        model = _module(config).build(settings, Inputs.of(spec, config.multi_hot, keeping))
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"training/models/{config.architecture}.py built a {type(model).__name__}, not a torch module",
            "let its build() return an nn.Module",
        )
    return model


def _module(config: ModelConfig) -> ModuleType:
    known = known_architectures()
    if config.architecture not in known:
        raise ConfigError(
            f"model.architecture={config.architecture!r} does not exist; known: {known}",
            "name one of these, or add a module of that name to training/models",
        )
    return import_module(f"{__name__}.{config.architecture}")
