"""The settings of the architectures, in modules that do not import torch: every job checks them before it works.

`training/settings/<name>.py` belongs to `training/models/<name>.py`. It has

    class Settings(Strict)                                  every key its YAML may hold beside those of ModelConfig
    check(settings: Settings, features: Features) -> None   optional: ConfigError where they do not fit the features

An architecture may also keep its Settings in its own module, without a file here; checking them then imports torch.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated

from pydantic import Field

from conf.errors import ConfigError
from conf.load import read_section
from conf.types import ModelConfig, PositiveInt, Strict
from storage.feature_spec import require_lists

HiddenWidths = Annotated[list[PositiveInt], Field(min_length=1)]
DropShare = Annotated[float, Field(ge=0, lt=1)]

_MODELS = "training.models"
# Modules of that folder that are no architectures.
_SHARED_MODULES = {"click_model", "factorization", "inputs", "interaction", "layers"}


@dataclass(frozen=True)
class Features:
    """The features a model is given, by name.

    Attributes:
        dense, ids, lists: numbers, single ids, lists of ids.
        pairs: those of scope `pair`, of any kind.
    """

    dense: Sequence[str] = ()
    ids: Sequence[str] = ()
    lists: Sequence[str] = ()
    pairs: Sequence[str] = ()


def known_architectures() -> list[str]:
    """The names of the architectures in training/models, listed without importing them."""
    loaded = sys.modules.get(_MODELS)
    spec = find_spec(_MODELS)
    folders = loaded.__path__ if loaded else (spec and spec.submodule_search_locations) or []
    modules = {module.name for module in pkgutil.iter_modules(folders)}
    return sorted(modules - _SHARED_MODULES)


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
    kind: type[Strict] = _module(config.architecture).Settings
    return read_section(
        kind,
        config.settings,
        f"architecture {config.architecture}: ",
        f"its settings are {sorted(kind.model_fields)}; correct these keys in the model's file or in --set",
        ("model",),
    )


def check_model(config: ModelConfig, features: Features) -> None:
    """What can be said of a model before there are features on disk.

    Raises:
        ConfigError: as `complete`, or settings and features do not fit together.
    """
    settings = read_settings(config)
    require_lists(config.multi_hot, features.lists)
    check = getattr(_module(config.architecture), "check", None)
    if check is not None:
        check(settings, features)


def _module(architecture: str) -> ModuleType:
    """The module that holds the architecture's settings."""
    known = known_architectures()
    if architecture not in known:
        raise ConfigError(
            f"model.architecture={architecture!r} does not exist; known: {known}",
            "name one of these, or add a module of that name to training/models",
        )
    apart = f"{__name__}.{architecture}"
    return import_module(apart if find_spec(apart) else f"{_MODELS}.{architecture}")
