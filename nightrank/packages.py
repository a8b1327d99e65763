"""Checks that optional packages are installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from conf.errors import ConfigError


def require_packages(names: Sequence[str], extra: str, purpose: str) -> None:
    """Raises ConfigError if packages are not installed.

    Args:
        names: the names of their modules.
        extra: the extra of the wheel that installs them.
        purpose: what needs them, for the message.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{purpose} needs the packages {missing}, which are not installed",
            f"pip install 'nightrank[{extra}]'",
        )


def require_torch() -> None:
    """Raises ConfigError if the packages that compute models are not installed."""
    require_packages(("torch", "safetensors"), "models", "a model")


def require_onnx() -> None:
    """Raises ConfigError if the packages that export models are not installed."""
    require_torch()
    require_packages(("onnx", "onnxscript", "onnxruntime"), "export", "an export")
