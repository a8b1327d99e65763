"""Installs packages in a folder: modules, and a `.dist-info` folder as installers write it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from importlib import invalidate_caches
from pathlib import Path

import conf.plugins

SHOP = Path(__file__).parent / "shop_extensions"
# Group -> name -> module, of the package in the folder SHOP.
SHOP_POINTS: Mapping[str, Mapping[str, str]] = {
    "operators": {"share_of_maximum": "shop_extensions.share_of_maximum"},
    "models": {"small_network": "shop_extensions.small_network"},
    "losses": {"focal": "shop_extensions.focal"},
    "rules": {"season": "shop_extensions.season"},
    "candidate_sources": {"newest": "shop_extensions.newest"},
    "readers": {"npz": "shop_extensions.npz"},
}


def write_package(
    folder: Path, name: str, points: Mapping[str, Mapping[str, str]], modules: Mapping[str, str] | None = None
) -> None:
    """Writes the entry points of a package, and modules with their texts, to a folder of the import path."""
    details = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    details.mkdir(parents=True)
    (details / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = [
        "\n".join([f"[nightrank.{group}]", *(f"{key} = {value}" for key, value in named.items())])
        for group, named in points.items()
    ]
    (details / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
    for module, text in (modules or {}).items():
        (folder / f"{module}.py").write_text(text)
    invalidate_caches()  # the import system may have read the folder in the same moment


def write_shop(folder: Path) -> None:
    """Writes the package `shop-extensions` to a folder of the import path."""
    shutil.copytree(SHOP, folder / SHOP.name, ignore=shutil.ignore_patterns("__pycache__"))
    write_package(folder, "shop-extensions", SHOP_POINTS)


def forget_shop() -> None:
    """Forgets the modules of the package and the list of installed packages, as a new process does."""
    for name in [name for name in sys.modules if name.split(".")[0] == SHOP.name]:
        del sys.modules[name]
    conf.plugins._installed.cache_clear()
    invalidate_caches()
