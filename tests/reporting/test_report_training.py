"""What the page says of a model's architecture."""

from __future__ import annotations

from typing import Any

import pytest

from reporting.html.sections.model_sections import _architecture, _kept

MODEL = {
    "architecture": "wide_and_deep",
    "multi_hot": {"pooling": "mean", "max_length": 8, "lengths": {"genres": 6}},
    "embedding_dim": 16,
    "deep": [64, 32],
    "dropout": 0.0,
    "wide_ftrl": {"learning_rate": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0},
}
SIZES = "wide_and_deep, deep 64–32, embedding dim 16"
LISTS = "multi hot (pooling mean, max length 8, lengths (genres 6))"
FTRL = "wide ftrl (learning rate 0.1, beta 1.0)"


@pytest.mark.parametrize(
    "kind, expected", [("categorical", f"{SIZES}, {FTRL}"), ("multi_hot", f"{SIZES}, {LISTS}, {FTRL}")]
)
def test_settings_are_listed_and_lists_where_there_are_any(kind: str, expected: str) -> None:
    model: dict[str, Any] = {
        "architecture": "wide_and_deep",
        "model": MODEL,
        "feature_spec": {"features": [{"kind": "dense"}, {"kind": kind}]},
    }
    assert _architecture(model) == expected


@pytest.mark.parametrize(
    "kept, expected",
    [
        ({"step": 4, "best_step": 4}, "step 4 (epoch 2), validation log loss 0.4500"),
        (
            {"step": 1200, "best_step": 4},
            "step 1,200 (epoch 2), validation log loss 0.4500; step 4 was better, but its weights were not saved",
        ),
        ({"step": 4, "best_step": None, "metric": None}, None),
    ],
)
def test_the_kept_step_is_shown_if_a_measure_chose_it(kept: dict[str, Any], expected: str | None) -> None:
    assert _kept({"kept": {"epoch": 2, "metric": "log_loss", "value": 0.45, **kept}}) == expected
    assert _kept({}) is None


def test_a_model_without_a_description_has_a_name_at_most() -> None:
    assert _architecture({"architecture": "dlrm"}) == "dlrm"
