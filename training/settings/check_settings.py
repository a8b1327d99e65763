"""Reads and checks a model's settings, without torch. Unknown settings are refused.

The module also creates the pydantic type that parses the section `model`, and checks whether
features fit the settings `negatives` and `unknown_share` of the section `train`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, reduce
from operator import or_
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, create_model

from conf.errors import ConfigError
from conf.load import read_section
from conf.plugins import LOSS, MODEL, Plugin, digests_of
from conf.types import ModelConfig, Strict, Train
from storage.feature_spec import require_lists
from training.settings.shared_settings import Features, HistorySettings, item_of


def known_architectures() -> list[str]:
    """Returns the names of the architectures of the checkout, without importing them."""
    return list(MODEL.built_in())


def training_digests(train: Train, architectures: Iterable[str]) -> dict[str, str]:
    """Returns code digests of the architectures and the loss, if they come from other packages.

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
    """Returns a configuration in which `item` is the name of the item's feature, if the model needs it.

    The configuration is unchanged if it already names this feature, if its architecture has no histories, or
    if `items` is empty.

    Args:
        config: the architecture and its settings.
        items: the features whose values are ids of the row's item.

    Raises:
        ConfigError: `items` has several features, or the configuration is not valid (see `complete`).
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
            "VECTORS = True (docs/extending.md), as the model or as `model` of the source `retrieval`",
        )


def reads_scopes(config: ModelConfig) -> bool:
    """Returns whether a model may compute another logit if features have other scopes.

    The result is true if the architecture does not define `READS_SCOPES`.

    Raises:
        ConfigError: the architecture does not exist.
    """
    return bool(getattr(_module(config.architecture), "READS_SCOPES", True))


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


# The code below checks whether the features fit `train.negatives`, without torch.


def require_no_pair_features(names: Sequence[str]) -> None:
    """Raises ConfigError if a feature may depend on user and item.

    When an item is drawn for a row, the pair gets the row's user features and the drawn item's features. A
    feature that depends on both user and item would have to be computed for each drawn pair.
    """
    if names:
        raise ConfigError(
            f"train.negatives draws items, but these features may differ for every pair of user and item: "
            f"{list(names)}. They are not in scopes.user, scopes.item or scopes.context",
            "add each of them to one of these lists if it depends only on the user, the item or the context; "
            "otherwise remove it from `features`, or remove train.negatives",
        )


# The code below checks whether the features fit `train.unknown_share`, without torch.


def require_oov_ids(names: Collection[str], features: Sequence[str]) -> None:
    """Raises ConfigError if a feature in `names` gives unknown values an id other than OOV_ID.

    Args:
        names: the features that `train.unknown_share` names.
        features: the features in which unknown values have the id OOV_ID.
    """
    wrong = sorted(set(names) - set(features))
    if wrong:
        raise ConfigError(
            f"train.unknown_share names {wrong}, but ids can be replaced only in features whose ids come "
            f"from categorify with oov_buckets=1; these are {list(features)}",
            "name only such features in train.unknown_share",
        )


# The type of the section `model` is a union with one member per architecture. The key `architecture` selects
# the member.


@lru_cache(maxsize=64)
def section_of(architecture: str, settings: type[Strict]) -> type[Strict]:
    """Returns the type of an architecture's section `model`: its settings and the keys of all models."""
    common: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in ModelConfig.model_fields.items()
        if name != "architecture"
    }
    only: Any = Literal[architecture]
    named = Field(
        description=f"`{architecture}` selects the model in training/architectures/{architecture}.py."
    )
    return create_model(
        f"{''.join(part.capitalize() for part in architecture.split('_'))}Model",
        __base__=settings,
        __doc__=settings.__doc__,
        architecture=(only, named),
        **common,
    )


def model_sections() -> dict[str, type[Strict]]:
    """Returns, for each architecture of the checkout, the type that parses its section `model`."""
    return {one.name: section_of(one.name, one.settings(Strict)) for one in MODEL.plugins()}


def models_adapter() -> TypeAdapter[Any]:
    """Returns the parser of a section `model`. The key `architecture` selects the type."""
    members: list[Any] = list(model_sections().values())
    union: Any = Annotated[reduce(or_, members), Field(discriminator="architecture")]
    return TypeAdapter(union)
