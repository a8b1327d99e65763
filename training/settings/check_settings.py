"""Reads and checks a model's settings. Settings that its architecture does not have are refused."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from conf.errors import ConfigError
from conf.load import read_section
from conf.plugins import LOSS, MODEL, Plugin, digests_of
from conf.types import ModelConfig, Strict, Train
from storage.feature_spec import require_lists
from training.settings.architectures import MODEL_SECTIONS, model_section
from training.settings.field_types import Features
from training.settings.history import HistorySettings, item_of

_MODELS = "training.models"
_SETTINGS = "training.settings"
# Modules in training/models that are not architectures.
_SHARED_MODULES = {
    "click_model",
    "factorization",
    "field_weights",
    "history",
    "inputs",
    "interaction",
    "layers",
    "objective",
    "sequence",
    "sequence_model",
    "shared_items",
}


def known_architectures() -> list[str]:
    """Returns the names of the architectures in training/models, without importing them."""
    loaded = sys.modules.get(_MODELS)
    spec = find_spec(_MODELS)
    folders = loaded.__path__ if loaded else (spec and spec.submodule_search_locations) or []
    return sorted({module.name for module in pkgutil.iter_modules(folders)} - _SHARED_MODULES)


def architecture_extension(architecture: str) -> Plugin | None:
    """Returns the extension of another package that adds the architecture; None if there is none.

    Raises:
        ConfigError: two architectures have the name of an installed extension.
    """
    return MODEL.find_in_package(architecture, _built_in())


def training_digests(train: Train, architectures: Iterable[str]) -> dict[str, str]:
    """Returns the digest of the code of each architecture, and of the loss, that other packages add.

    It is empty if there is none.

    Raises:
        ConfigError: a module of a package cannot be imported.
    """
    models = [architecture_extension(name) for name in dict.fromkeys(architectures)]
    return digests_of([*models, LOSS.find_in_package(train.loss_name)])


def complete(config: ModelConfig) -> ModelConfig:
    """Returns the configuration with all settings of its architecture, including defaults.

    Raises:
        ConfigError: the architecture does not exist, a key is not one of its settings, or a value is not
            valid.
    """
    return ModelConfig.model_validate(read_settings(config).model_dump(mode="json"))


def read_settings(config: ModelConfig) -> Strict:
    """Returns a model's settings as its architecture's `Settings`. Raises the same errors as `complete`."""
    architecture = config.architecture
    extension = architecture_extension(architecture)
    settings: type[Strict] = (
        extension.member("Settings", Strict) if extension else _module(architecture).Settings
    )
    return read_section(
        MODEL_SECTIONS.get(architecture) or model_section(architecture, settings),
        config.model_dump(),
        f"architecture {architecture}: ",
        f"its settings are {sorted(settings.model_fields)}; "
        "correct these keys in the model's configuration file or in --set",
        ("model",),
    )


def with_item(config: ModelConfig, items: Sequence[str]) -> ModelConfig:
    """Returns the configuration with the name of the item's feature as `item`, if its model needs this name.

    The configuration is unchanged if it has the name, if its architecture has no histories, or if `items` is
    empty.

    Args:
        config: the architecture and its settings.
        items: the features whose values are ids of the row's item.

    Raises:
        ConfigError: there are several such features; or see `complete`.
    """
    settings = read_settings(config)
    if not items or not isinstance(settings, HistorySettings) or settings.item is not None:
        return config
    item = item_of(settings, Features(items=items))
    return ModelConfig.model_validate({**config.model_dump(), "item": item})


def check_model(config: ModelConfig, features: Features) -> None:
    """Checks a model's settings against the names of its features, before any features are on disk.

    Raises:
        ConfigError: the architecture or its settings are not valid (see `complete`), or the settings do not
            fit the features.
    """
    settings = read_settings(config)
    require_lists(config.multi_hot, features.lists)
    check = getattr(_module(config.architecture), "check", None)
    if check is not None:
        check(settings, features)


def check_retriever(config: ModelConfig) -> None:
    """Checks that the model of the source `retrieval` has vectors of users and items.

    Raises:
        ConfigError: the architecture does not exist, or has no such vectors.
    """
    if not getattr(_module(config.architecture), "VECTORS", False):
        raise ConfigError(
            f"model.architecture={config.architecture!r} has no vectors of users and items",
            "use two_tower, sasrec, bert4rec, mult_vae, or an architecture of your own with VECTORS = True "
            "(docs/extending.md)",
        )


def check_loss(train: Train, config: ModelConfig) -> None:
    """Checks that the loss of the section `train` can train the model.

    Raises:
        ConfigError: the loss compares vectors, but the architecture has none; or the model's settings do not
            fit the loss.
    """
    module = _module(config.architecture)
    if train.compares_vectors and not getattr(module, "VECTORS", False):
        raise vectors_missing(train.loss_name, f"architecture {config.architecture}")
    check = getattr(module, "check_loss", None)
    if check is not None:
        check(read_settings(config), train.loss_name)


def vectors_missing(loss: str, model: str) -> ConfigError:
    """Returns the error for a loss over item vectors with a model that has none."""
    return ConfigError(
        f"train.loss={loss} compares a user vector with vectors of items, but {model} does not have such "
        "vectors",
        "use only the architectures two_tower, sasrec, bert4rec and mult_vae, also in train.baselines, or "
        "set train.loss=softmax with train.negatives",
    )


def _built_in() -> dict[str, str]:
    return {name: f"{_MODELS}.{name}" for name in known_architectures()}


def _module(architecture: str) -> ModuleType:
    """Returns the module that contains the architecture's settings.

    Raises:
        ConfigError: the architecture does not exist, or its module in another package cannot be imported.
    """
    built_in = _built_in()
    extension = MODEL.find_in_package(architecture, built_in)
    if extension is not None:
        return extension.load()
    if architecture not in built_in:
        raise ConfigError(
            f"model.architecture={architecture!r} does not exist; known: {MODEL.names(built_in)}",
            "set model.architecture to one of these, add the module "
            f"training/models/{architecture}.py, or install a package with an entry point of the group "
            "nightrank.models",
        )
    without_torch = f"{_SETTINGS}.{architecture}"
    return import_module(without_torch if find_spec(without_torch) else f"{_MODELS}.{architecture}")
