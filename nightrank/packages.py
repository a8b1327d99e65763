"""Checks that optional packages are installed."""

from __future__ import annotations

from importlib.util import find_spec

from conf.errors import ConfigError


def require_torch() -> None:
    """Raises ConfigError if the packages that compute models are not installed."""
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a model needs the packages {missing}, which are not installed",
            "pip install 'nightrank[models]'",
        )
