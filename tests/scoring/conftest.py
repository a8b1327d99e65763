"""The hand-made world of the scoring tests."""

from __future__ import annotations

import pytest

from tests.scoring.world import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))
