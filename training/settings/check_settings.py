"""Reads and checks a model's settings. Settings that its architecture does not have are refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType

from conf.errors import ConfigError
from conf.load import read_section
from conf.plugins import LOSS, MODEL, Plugin, digests_of
from conf.types import ModelConfig, Strict, Train
from storage.feature_spec import require_lists
from training.settings.architectures import section_of
from training.settings.field_types import Features
from training.settings.history import HistorySettings, item_of


def known_architectures() -> list[str]:
    """Returns the names of the architectures of the checkout, without importing them."""
    return list(MODEL.built_in())


def training_digests(train: Train, architectures: Iterable[str]) -> dict[str, str]:
    """Returns digests of the code of those architectures, and of the loss, that come from other packages.

    Built-in architectures and losses have no digest. The result is empty if all are built in.

    Raises:
        ConfigError: a module of a package cannot be imported.
    """
    models = [MODEL.find_in_package(name) for name in dict.fromkeys(architectures)]
    return digests_of([*models, LOSS.find_in_package(train.loss_name)])


def complete(config: ModelConfig) -> ModelConfig:
    """Returns the configuration with all settings of its architecture, including defaults.

    Raises:
        ConfigError: the architecture does not exist, a key is not one of its settings, or a value is not
            valid.
    """
    return ModelConfig.model_validate(read_settings(config).model_dump(mode="json"))


def read_settings(config: ModelConfig) -> Strict:
    """Returns a model's settings as an object of the class `Settings`. Raises the errors of `complete`."""
    settings = _find(config.architecture).settings(Strict)
    return read_section(
        section_of(config.architecture, settings),
        config.model_dump(),
        f"architecture {config.architecture}: ",
        f"its settings are {sorted(settings.model_fields)}; "
        "correct these keys in the model's configuration file or in --set",
        ("model",),
    )


def with_item(config: ModelConfig, items: Sequence[str]) -> ModelConfig:
    """Returns the configuration with the name of the item's feature as `item`, if its model needs this name.

    The configuration is unchanged if it already names this feature, if its architecture has no histories, or
    if `items` is empty.

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
            "use two_tower, sasrec, hstu, bert4rec, mult_vae, or an architecture of your own with "
            "VECTORS = True (docs/extending.md)",
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
        "use only the architectures two_tower, sasrec, hstu, bert4rec and mult_vae, also in train.baselines, "
        "or set train.loss=softmax with train.negatives",
    )


def _module(architecture: str) -> ModuleType:
    """Returns the module that contains the architecture's settings. Raises the errors of `_find`."""
    return _find(architecture).load_settings()


def _find(architecture: str) -> Plugin:
    """Returns an architecture.

    Raises:
        ConfigError: the architecture does not exist, or its module in another package cannot be imported.
    """
    plugin = MODEL.find(architecture)
    if plugin is None:
        raise ConfigError(
            f"model.architecture={architecture!r} does not exist; known: {MODEL.names()}",
            "set model.architecture to one of these, add the module "
            f"training/architectures/{architecture}.py, or install a package with an entry point of the "
            "group nightrank.models",
        )
    return plugin
