"""Reads the sections `model` and `train` of a training on a frame, and refuses settings that need jobs."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.load import read_section
from conf.types import ModelConfig, Train
from conf.yaml_files import read_yaml
from training.settings import complete, known_architectures

_ONE_RANK = "one rank trains, in this process"
_NO_LAKE = "the training does not use a lake"
_NO_KEYS = "rows of a frame have no keys of users and items"
# Settings without an effect, or whose effect needs more than the rows of a frame.
_REFUSED = {
    "num_ranks": _ONE_RANK,
    "elastic": _ONE_RANK,
    "start_timeout_s": _ONE_RANK,
    "embeddings.placement": _ONE_RANK,
    "embeddings.replicated_max_bytes": _ONE_RANK,
    "embeddings.row_wise_share": _ONE_RANK,
    "checkpoint_every_steps": _NO_LAKE,
    "keep_checkpoints": _NO_LAKE,
    "profile": _NO_LAKE,
    "retrain": _NO_LAKE,
    "refit": _NO_LAKE,
    "reading.staging_folder": _NO_LAKE,
    "reading.staging_mib": _NO_LAKE,
    "embedding_memory": _NO_LAKE,
    "embedding_memory_mib": _NO_LAKE,
    "negatives": _NO_KEYS,
    "unknown_share": _NO_KEYS,
    "max_softmax_items": _NO_KEYS,
    "baselines": "train each baseline by a call of its own",
}
_MEASURED = ("evaluate_every_steps", "stop_at")


def read_model(section: Mapping[str, Any] | ModelConfig | str | PathLike[str]) -> ModelConfig:
    """Returns the section `model`, or that in a YAML file, with all settings of its architecture.

    Raises:
        ConfigError: it is no mapping, the file cannot be read, the architecture does not exist, or a setting
            is wrong.
    """
    if not isinstance(section, str | PathLike):
        return complete(_read(ModelConfig, section, "model"))
    if section in known_architectures():
        raise ConfigError(
            f"model={section!r} is an architecture, but it must be a mapping or the path of a YAML file",
            f'pass {{"architecture": {section!r}}}',
        )
    return complete(_read(ModelConfig, read_yaml(Path(section)), "model"))


def read_train(section: Mapping[str, Any] | Train | None, *, is_measured: bool) -> Train:
    """Returns the section `train`; None for its defaults.

    Args:
        section: its keys. Those that have no effect in a training on a frame are refused.
        is_measured: whether there are validation rows.

    Raises:
        ConfigError: a key is unknown or refused, a value breaks its rule, or a setting needs validation rows.
    """
    train = Train() if section is None else _read(Train, section, "train")
    wrong = [f"train.{name} ({why})" for name, why in _REFUSED.items() if _is_set(train, name)]
    if train.loss_settings.compares != "rows":
        wrong.append(f"train.loss={train.loss_name} ({_NO_KEYS})")
    if wrong:
        raise ConfigError(
            f"a training on a frame does not have the settings {', '.join(wrong)}",
            "remove them, or train in a lake with train_model",
        )
    unmeasured = [f"train.{name}" for name in _MEASURED if getattr(train, name)]
    unmeasured += ["train.keep=best"] if _is_set(train, "keep") and train.keep == "best" else []
    if unmeasured and not is_measured:
        raise ConfigError(
            f"{' and '.join(unmeasured)} cannot be used without validation rows",
            "pass `validation`, or remove these settings",
        )
    return train


def _read(kind: Any, section: Any, name: str) -> Any:
    """Returns a section as an object of its type."""
    if isinstance(section, kind):
        return section
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"{name} is {section!r}, but it must be a mapping", f"pass the keys of the section `{name}`"
        )
    return read_section(kind, dict(section), "", f"correct these keys of `{name}`", (name,))


def _is_set(train: Train, name: str) -> bool:
    """Returns whether the caller has set a key, whose name may have two parts."""
    outer, _, inner = name.partition(".")
    if outer not in train.model_fields_set:
        return False
    return not inner or inner in getattr(train, outer).model_fields_set
