"""Packages outside of the checkout, which are installed for one test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Protocol

import pytest

from conf.plugins import Kind
from tests.extensions.packages import SHOP, write_shop


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path. Modules that were imported from it are forgotten after the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    before = {*sys.modules}
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def shop(site: Path) -> Path:
    """The folder of the installed package `shop-extensions`."""
    write_shop(site)
    return site / SHOP.name


class AddToCheckout(Protocol):
    """Adds a file to the folder of a kind, or to its folder of settings."""

    def __call__(self, kind: Kind, name: str, text: str, *, to_settings: bool = False) -> None: ...


@pytest.fixture
def add_to_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddToCheckout]:
    """Adds files as if they were the only change of the checkout."""
    before = {*sys.modules}

    def add(kind: Kind, name: str, text: str, *, to_settings: bool = False) -> None:
        to = (kind.settings_folder if to_settings else None) or kind.folder
        folder = tmp_path / to
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        package = import_module(to)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        invalidate_caches()

    yield add
    for name in {*sys.modules} - before:
        of_test = str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path))
        if of_test and "." in name:
            parent, _, child = name.rpartition(".")
            vars(sys.modules[parent]).pop(child, None)
            del sys.modules[name]
