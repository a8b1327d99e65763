"""NeuMF: each of its two paths learns alone, and features of the pair are not factors.

Its equations and its training are tested with those of all architectures (numpy_models.py, architectures.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conf.errors import ConfigError
from conf.types import ModelConfig
from storage.feature_spec import Feature, FeatureSpec
from storage.paths import LakePaths
from tests.training.feature_rows import segment_rows
from tests.training.feature_tables import make_config, publish_all
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan
from training.models import build_model, complete


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"gmf_dim": 4, "mlp_dim": 1, "deep": [1]}, {"gmf_dim": 1, "mlp_dim": 6, "deep": [16, 8]}],
    ids=["gmf", "mlp"],
)
def test_each_path_learns_which_segment_likes_which_category(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """The other path has one number per vector, which is too few."""
    torch.set_num_threads(1)
    spec, train = segment_rows(20_000, seed=1)
    days = {"train": {"2026-01-02": train}, "validation": {"2026-01-03": segment_rows(4_000, seed=2)[1]}}
    lake = LakePaths(str(tmp_path))
    dataset = publish_all(lake, "2026-01-04", spec, days)
    plan = make_plan(
        make_config(
            lake,
            model={"architecture": "neumf", **settings},
            train={
                "num_ranks": 1,
                "num_shards": 4,
                "device": "cpu",
                "global_batch_size": 256,
                "epochs": 4,
                "learning_rate": 0.01,
                "embedding_learning_rate": 0.01,
                "embeddings": {"optimizer": "lazy_adam"},
            },
        ),
        lake,
        dataset,
    )
    auc = train_in_process(plan)["metrics"]["validation"]["auc"]
    assert auc > 0.77  # the true probabilities reach 0.80


def test_a_feature_of_the_pair_is_an_input_of_the_mlp_only() -> None:
    scopes = ("user", "item", "pair")
    features = tuple(Feature(f"C{i}", "categorical", "int32", scope, 5) for i, scope in enumerate(scopes))
    config = ModelConfig.model_validate({"architecture": "neumf", "gmf_dim": 2, "mlp_dim": 3})
    model: Any = build_model(config, FeatureSpec(features, ("row_id",), "w1")).eval()
    dense, ids = torch.zeros(4, 0), torch.tensor([[1, 2, 0], [1, 2, 1], [1, 2, 2], [1, 2, 3]])
    with torch.no_grad():
        model.embedding.weight.copy_(torch.randn(15, 5, generator=torch.Generator().manual_seed(0)))
        assert len(set(model(dense, ids).tolist())) > 1
        model.embedding.weight[:, 2:] = 0  # the MLP's numbers
        product = (
            model.embedding.weight[1, :2] * model.embedding.weight[5 + 2, :2] * model.gmf_weights
        ).sum()
        torch.testing.assert_close(model(dense, ids), product.expand(4))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"gmf_dim": 0}, r"model.gmf_dim=0: Input should be greater than 0"),
        ({"deep": []}, r"model.deep: List should have at least 1 item"),
        ({"embedding_dim": 8}, r"unknown key model.embedding_dim=8\n.*'gmf_dim', 'mlp_dim'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        complete(ModelConfig.model_validate({"architecture": "neumf", **settings}))
