"""Fixtures that all tests of scoring share."""

from __future__ import annotations

import pytest

from tests.scoring.reference_scores import ReferenceScores, make_reference


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> ReferenceScores:
    """37 users, 23 items, a model, and NumPy's probability of each pair."""
    return make_reference(tmp_path_factory.mktemp("reference"))
