"""The base class of estimators, with parameters as in scikit-learn, and the default training settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from conf import load as conf_load
from conf.errors import ConfigError
from conf.load import read_yaml
from training.settings import known_architectures

Self = TypeVar("Self", bound="Estimator")


class Estimator:
    """Base class of estimators.

    Each keyword argument of the constructor becomes an attribute of the same name. A constructor may also
    accept `**settings`, which become the attribute `settings`. The constructor only stores its arguments;
    `fit` checks them.
    """

    settings: dict[str, Any]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the arguments of the constructor, including defaults.

        Args:
            deep: without effect, because no argument is an estimator.
        """
        return {name: getattr(self, name) for name in self._names()} | dict(self.settings)

    def set_params(self: Self, **parameters: Any) -> Self:
        """Sets arguments of the constructor, and returns this estimator. The next `fit` uses them.

        Names that the constructor does not list are settings of the model, which `fit` checks.
        """
        names = self._names()
        for name, value in parameters.items():
            if name in names:
                setattr(self, name, value)
            else:
                self.settings = {**self.settings, name: value}
        return self

    def __repr__(self) -> str:
        defaults = {name: one.default for name, one in self._arguments().items()}
        changed = {
            name: value
            for name, value in self.get_params().items()
            if name not in defaults or not _is_same(value, defaults[name])
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        return f"{type(self).__name__}({shown})"

    def _require(self, fitted: Any, what: str) -> Any:
        """Returns `fitted`. Raises ConfigError if it is None, because `fit` was not called."""
        if fitted is None:
            raise ConfigError(f"the {what} is not fitted", "call `fit` first")
        return fitted

    @classmethod
    def _arguments(cls) -> dict[str, inspect.Parameter]:
        """Returns the arguments of the constructor, without the settings of the model."""
        parameters = inspect.signature(cls.__init__).parameters
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return {name: one for name, one in parameters.items() if one.kind in named and name != "self"}

    @classmethod
    def _names(cls) -> list[str]:
        return list(cls._arguments())


def _is_same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


# The default training settings of each architecture.

_SHARDS = 16
_RATES_OF_COMPARISONS: Mapping[str, Any] = {
    "learning_rate": 0.001,
    "embedding_learning_rate": 0.001,
    "embeddings": {"optimizer": "lazy_adam"},
}


@dataclass(frozen=True)
class Recipe:
    """The default settings for training a model of one architecture.

    Attributes:
        file: the name of the settings file in conf/models; None for the defaults of the architecture.
        loss: the loss. Losses that compare vectors use the items of other rows as negatives, so no items
            are drawn for them.
        drawn: number of negative items that each epoch draws for each positive row; None for no items.
        user_id: whether the id of the user is a feature.
        history: whether the user's earlier items are a feature of each row.
    """

    file: str | None = None
    loss: str = "bce"
    drawn: int | None = 4
    user_id: bool = True
    history: bool = True


_RECIPES: Mapping[str, Recipe] = {
    "sasrec": Recipe("sasrec", "softmax", drawn=20, user_id=False),
    "hstu": Recipe("hstu", "softmax", drawn=20, user_id=False),
    "bert4rec": Recipe("bert4rec", "softmax", drawn=20, user_id=False),
    "mult_vae": Recipe("mult_vae", "full_softmax", drawn=None, user_id=False),
    "two_tower": Recipe("two_tower_small", "in_batch_softmax", drawn=None),
    "neumf": Recipe("neumf", history=False),
    "dlrm": Recipe("dlrm_small"),
    "dcn_v2": Recipe("dcn_v2_small"),
    "deepfm": Recipe("deepfm_small"),
    "din": Recipe("din_small"),
    "wide_and_deep": Recipe("wide_and_deep_small"),
}


@dataclass(frozen=True)
class Training:
    """The settings of a training run. They are arguments of `Recommender`, which documents them.

    `settings` are the settings of the architecture.
    """

    model: str
    epochs: int
    batch_size: int
    learning_rate: float | None
    embedding_learning_rate: float | None
    refit: bool
    device: str
    seed: int
    settings: Mapping[str, Any]

    @property
    def recipe(self) -> Recipe:
        """Returns the defaults of the architecture. Raises ConfigError if the architecture does not exist."""
        if self.model not in known_architectures():
            raise ConfigError(
                f"model={self.model!r} is not an architecture", f"choose from {sorted(known_architectures())}"
            )
        return _RECIPES.get(self.model, Recipe())

    def model_section(self, *, has_dense: bool) -> dict[str, Any]:
        """Returns the section `model` of a configuration: the caller's settings, and defaults for others."""
        file, default = self.recipe.file, {"architecture": self.model}
        if file is not None:
            default = dict(read_yaml(Path(conf_load.__file__).parent / "models" / f"{file}.yaml"))
        section = {**default, **{name: python_value(value) for name, value in self.settings.items()}}
        if "bottom_mlp" in default and "bottom_mlp" not in self.settings:
            # The bottom MLP reads the dense features, and its last layer must be as wide as an embedding.
            widths = [*default["bottom_mlp"][:-1], section["embedding_dim"]]
            section["bottom_mlp"] = widths if has_dense else []
        return section

    def train_section(self, drawn: int | None) -> dict[str, Any]:
        """Returns the section `train` of a configuration, with `drawn` negatives for each positive row."""
        batch_size = python_value(self.batch_size)
        shards = gcd(_SHARDS, batch_size) if isinstance(batch_size, int) else _SHARDS
        # Models that rank items use the learning rates and the optimizer that the command `init` writes.
        # Models of click probabilities use the defaults of the jobs.
        rates = {} if self.recipe.loss == "bce" else _RATES_OF_COMPARISONS
        chosen_rates = {
            "learning_rate": self.learning_rate,
            "embedding_learning_rate": self.embedding_learning_rate,
        }
        return {
            "epochs": python_value(self.epochs),
            "global_batch_size": batch_size,
            "num_shards": shards,
            **rates,
            **{name: python_value(rate) for name, rate in chosen_rates.items() if rate is not None},
            "loss": self.recipe.loss,
            **({"negatives": {"per_positive": drawn}} if drawn else {}),
            "seed": python_value(self.seed),
            "device": self.device,
        }


def python_value(value: Any) -> Any:
    """Converts a NumPy number to a Python number; returns other values unchanged.

    scikit-learn's searches over settings pass NumPy numbers.
    """
    return value.item() if isinstance(value, np.generic) else value


def operators(kind: pa.DataType) -> dict[str, Any]:
    """Returns the keys `kind` and `ops` of a feature's group, chosen by the Arrow type of its column.

    A column of numbers becomes a dense feature, with nulls replaced by the median. A column of lists becomes
    a feature with several ids, and any other column a feature with one id.
    """
    categorify = [{"categorify": {"min_count": 1}}]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"kind": "multi_hot", "ops": categorify}
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return {"kind": "dense", "ops": ["fill_median", "normalize"]}
    return {"kind": "categorical", "ops": categorify}
