"""Packages outside of the checkout, which are installed for one test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
