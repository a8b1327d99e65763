"""A model's YAML: its keys, its errors, the presets, and an architecture that is added as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from conf.errors import ConfigError
from conf.load import load_config
from conf.plugins import MODEL
from conf.types import ModelConfig, Strict
from storage.feature_spec import Feature, FeatureSpec
from storage.paths import LakePaths
from tests.training.architectures import SEQUENCE_VARIANTS, VARIANTS, variant
from tests.training.feature_rows import random_rows
from tests.training.feature_tables import make_config, publish_all
from training import architectures
from training.checkpoints import load_model
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan
from training.models import build_model, complete

PRESETS = Path("conf/models")


@pytest.mark.parametrize(
    "section, message",
    [
        (
            {"architecture": "dcn"},
            r"model.architecture='dcn' does not exist; known: \['bert4rec', 'dcn_v2', 'deepfm'",
        ),
        (
            {"architecture": "dlrm", "bottom_mpl": [4]},
            r"architecture dlrm: unknown key model.bottom_mpl=\[4\]\n"
            r".*\['bottom_mlp', 'embedding_dim', 'top_mlp'\]",
        ),
        ({"architecture": "dlrm", "cross_layers": 3}, "architecture dlrm: unknown key model.cross_layers=3"),
        ({"architecture": "logistic_regression", "embedding_dim": 8}, "unknown key model.embedding_dim=8"),
        ({"architecture": "deepfm", "deep": []}, "model.deep: List should have at least 1 item"),
        ({"architecture": "deepfm", "dropout": 1.0}, "model.dropout=1.0: Input should be less than 1"),
        ({"architecture": "dcn_v2", "structure": "mixed"}, "model.structure='mixed'"),
        ({"architecture": "dcn_v2", "cross_rank": 0}, "model.cross_rank=0: Input should be greater than 0"),
        ({"architecture": "wide_and_deep", "wide_ftrl": {"alpha": 1}}, "unknown key model.wide_ftrl.alpha=1"),
        (
            {"architecture": "dlrm", "top_mlp": [0], "dropout": 0.5},
            r"model.top_mlp.0=0: .* greater than 0; unknown key model.dropout=0.5",
        ),
    ],
)
def test_wrong_settings_are_named(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        complete(ModelConfig.model_validate(section))


@pytest.mark.parametrize("name", [*VARIANTS, *SEQUENCE_VARIANTS])
def test_a_complete_configuration_holds_every_setting_and_is_complete(name: str) -> None:
    config = complete(variant(name))
    kind = MODEL.get(config.architecture).settings(Strict)
    assert set(config.settings) == set(kind.model_fields)
    assert complete(config) == config
    assert complete(ModelConfig.model_validate(config.model_dump(mode="json"))) == config
    written = {**VARIANTS, **SEQUENCE_VARIANTS}[name]
    assert config.settings.items() >= {k: v for k, v in written.items() if k != "architecture"}.items()


def test_a_plan_refuses_wrong_settings_and_describes_all_of_them(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    spec = FeatureSpec((Feature("C0", "categorical", "int32", "pair", 5),), ("row_id",), "w1")
    dataset = publish_all(lake, "2026-01-04", spec, {"train": {"2026-01-02": random_rows(spec, 20, seed=0)}})
    with pytest.raises(ConfigError, match=r"unknown key model.top_mpl=\[8\]"):
        make_plan(make_config(lake, model={"architecture": "dlrm", "top_mpl": [8]}), lake, dataset)
    plan = make_plan(make_config(lake, model={"architecture": "deepfm"}), lake, dataset)
    assert plan.description["model"] == {
        "architecture": "deepfm",
        "multi_hot": {"pooling": "mean", "max_length": 32, "lengths": {}},
        "embedding_storage": "fp32",
        "embedding_dim": 10,
        "field_weights": False,
        "deep": [400, 400, 400],
        "dropout": 0.0,
    }


def criteo_like() -> FeatureSpec:
    dense = [Feature(f"I{i}", "dense", "float32", "user" if i < 6 else "item") for i in range(13)]
    ids = [Feature(f"C{i}", "categorical", "int32", "user" if i < 13 else "item", 4) for i in range(26)]
    return FeatureSpec((*dense, *ids), ("row_id",), "w1")


def widths(layers: nn.Module) -> list[int]:
    """Input width, then the width of every linear layer."""
    linear_layers = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return [linear_layers[0].in_features, *(layer.out_features for layer in linear_layers)]


def preset(name: str) -> ModelConfig:
    return ModelConfig.model_validate(yaml.safe_load((PRESETS / f"{name}.yaml").read_text()))


def of_items() -> FeatureSpec:
    """The two features that a model over sequences needs."""
    item = Feature("item_id", "categorical", "int32", "item", 4)
    return FeatureSpec((item, Feature("history", "multi_hot", "list<int32>", "user", 4)), ("row_id",), "w1")


def build_preset(name: str) -> Any:
    return build_model(preset(name), criteo_like())


def test_dlrm_preset_has_the_published_widths() -> None:
    model = build_preset("dlrm_criteo")
    assert model.embedding.weight.shape == (26 * 4, 128)
    assert widths(model.bottom) == [13, 512, 256, 128]
    assert widths(model.top) == [27 * 26 // 2 + 128, 1024, 1024, 512, 256]


@pytest.mark.parametrize("name, rank", [("dcn_v2", 512), ("dcn_v2_full", None)])
def test_dcn_v2_presets_have_the_published_widths(name: str, rank: int | None) -> None:
    model = build_preset(name)
    assert model.embedding.weight.shape == (26 * 4, 128)
    assert widths(model.bottom) == [13, 512, 256, 128]
    assert len(model.cross) == 3
    for layer in model.cross:
        assert layer.up.weight.shape == (3456, rank or 3456)
        assert rank is None or layer.down.weight.shape == (512, 3456)
    assert widths(model.deep) == [3456, 1024, 1024, 512, 256]
    assert preset(name).multi_hot.pooling == "sum"


def test_wide_and_deep_preset_has_the_published_widths() -> None:
    model = build_preset("wide_and_deep")
    assert widths(model.deep) == [26 * 64 + 13, *[1024] * 5]
    assert model.wide.embedding.weight.shape == (26 * 4, 1)
    assert model.wide.ftrl.learning_rate == 0.02
    assert [layer.share for layer in model.deep if hasattr(layer, "share")] == [0.1] * 5


def test_deepfm_preset_has_the_published_widths() -> None:
    model = build_preset("deepfm")
    assert model.embedding.weight.shape == (26 * 4, 10)
    assert widths(model.deep) == [39 * 10, 400, 400, 400]
    assert [layer.share for layer in model.deep if hasattr(layer, "share")] == [0.5] * 3


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_preset_scores_and_tells_where_it_is_from(path: Path) -> None:
    over_histories = ("sasrec", "hstu", "bert4rec", "din_small", "mult_vae")
    spec = of_items() if path.stem in over_histories else criteo_like()
    config = preset(path.stem)
    model = build_model(config, spec).eval()
    width = len(spec.categorical) + sum(spec.list_lengths(config.multi_hot))
    with torch.no_grad():
        logits = model(torch.zeros(2, len(spec.dense)), torch.ones(2, width, dtype=torch.int64))
    assert logits.shape == (2,)
    assert logits.isfinite().all()
    assert path.read_text().startswith("# ")


def test_a_setting_of_the_models_file_can_be_overridden() -> None:
    config = load_config(
        "conf/datasets/criteo.yaml", ["model=../models/deepfm.yaml", "model.dropout=0.2", "model.deep=[8]"]
    )
    assert config.model.architecture == "deepfm"
    assert config.model.settings == {"embedding_dim": 10, "deep": [8], "dropout": 0.2}


NEW_ARCHITECTURE = '''
"""Embeddings, added up."""
import torch
from torch import nn
from conf.types import PositiveInt, Strict

class Settings(Strict):
    embedding_dim: PositiveInt

class Sum(nn.Module):
    def __init__(self, settings, inputs):
        super().__init__()
        self.embedding = inputs.table(settings.embedding_dim)
        self.embedding.init_uniform()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, dense, categorical):
        return self.scale * self.embedding(categorical).sum(dim=(1, 2))

def build(settings, inputs):
    return Sum(settings, inputs)
'''


def test_an_architecture_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "architectures"
    folder.mkdir()
    (folder / "sum_of_embeddings.py").write_text(NEW_ARCHITECTURE)
    monkeypatch.setattr(architectures, "__path__", [*architectures.__path__, str(folder)])
    lake = LakePaths(str(tmp_path / "lake"))
    spec = FeatureSpec((Feature("C0", "categorical", "int32", "pair", 5),), ("row_id",), "w1")
    days = {"2026-01-02": random_rows(spec, 200, seed=0)}
    dataset = publish_all(lake, "2026-01-04", spec, {"train": days, "validation": days})
    config = {"architecture": "sum_of_embeddings", "embedding_dim": 3}
    train = {"global_batch_size": 64, "num_shards": 4, "num_ranks": 1, "device": "cpu"}
    plan = make_plan(make_config(lake, model=config, train=train), lake, dataset)
    assert train_in_process(plan)["metrics"]["validation"]["rows"] == 200
    loaded = load_model(plan.model_path, torch.device("cpu"))
    assert loaded.model.state_dict()["embedding.weight"].shape == (5, 3)
    with pytest.raises(ConfigError, match=r"architecture sum_of_embeddings: model.embedding_dim is missing"):
        complete(ModelConfig(architecture="sum_of_embeddings"))
