"""Checks that optional packages are installed."""

from __future__ import annotations

from importlib.util import find_spec

from conf.errors import ConfigError


def require_package(name: str) -> None:
    """Raises ConfigError if a package whose extra has the same name is not installed."""
    if find_spec(name) is None:
        raise ConfigError(f"the package {name} is not installed", f"pip install 'nightrank[{name}]'")


def require_torch() -> None:
    """Raises ConfigError if the packages that compute models are not installed."""
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a model needs the packages {missing}, which are not installed",
            "pip install 'nightrank[models]'",
        )
