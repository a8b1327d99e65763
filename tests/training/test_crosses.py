"""Products of features in the wide part: against NumPy, trained by FTRL, and in a grown vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conf.errors import ConfigError
from conf.types import ModelConfig
from metrics import auc
from storage.paths import LakePaths
from tests.training.feature_rows import make_spec, random_rows, segment_rows
from tests.training.feature_tables import make_config
from training.checkpoints import open_trained, save_trained
from training.collectives import LocalCollectives
from training.data.batch import Batch
from training.loop.run import warm_start
from training.loop.train_step import Trainer
from training.models import build_model

BUCKETS = 50


def crossed(left: list[str], right: list[str], **changed: Any) -> ModelConfig:
    settings = {
        "architecture": "wide_and_deep",
        "embedding_dim": 2,
        "deep": [2],
        "wide_ftrl": {"learning_rate": 0.1, "beta": 0.001},
        "multi_hot": {"max_length": 4},
        "crosses": [{"left": left, "right": right, "buckets": BUCKETS}],
    }
    return ModelConfig.model_validate({**settings, **changed})


def test_logits_add_the_weight_of_each_product() -> None:
    spec = make_spec(2, [9, 7, 5], lists=[6])
    model = build_model(crossed(["C0", "C2"], ["C1"]), spec).eval()
    plain = build_model(crossed([], []), spec).eval()
    rows = random_rows(spec, 40, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        weights = torch.randn(2 + 2 * BUCKETS, generator=generator)
        for module, values in ((model, weights), (plain, weights[:2])):
            module.wide.weights.copy_(values)
        product_sums = (model(*rows.tensors(4)) - plain(*rows.tensors(4))).numpy()
    ids = rows.categorical.astype(object)  # Python's integers
    expected = []
    for row in ids:
        places = [splitmix(a * 2**31 + row[1]) % 2**63 % BUCKETS for a in (row[0], row[2])]
        expected.append(sum(float(weights[2 + BUCKETS * n + place]) for n, place in enumerate(places)))
    np.testing.assert_allclose(product_sums, expected, atol=1e-5)


def splitmix(number: int) -> int:
    """Steele, Lea and Flood 2014, section 3, in Python's integers: 64 bits."""
    state = number * 0x9E3779B97F4A7C15 % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


def test_the_wide_part_alone_learns_what_the_product_tells() -> None:
    spec, rows = segment_rows(4_000, seed=1)
    few_collisions = {"crosses": [{"left": ["C0"], "right": ["C1"], "buckets": 1000}]}
    model = build_model(crossed([], [], **few_collisions), spec)
    with torch.no_grad():  # nothing comes from the deep part, and nothing goes there
        model.logit.weight.zero_()
        model.deep[0].weight.zero_()
    trainer = Trainer(model.train(), make_train(), LocalCollectives())
    dense, ids = rows.tensors(1)
    labels = torch.from_numpy(rows.labels)
    for _ in range(40):
        batch = Batch(dense, ids, labels, torch.ones(len(rows)), len(rows))
        trainer.step(batch, 1.0)
    _, fresh = segment_rows(4_000, seed=2)
    with torch.no_grad():
        logits = model.eval()(*fresh.tensors(1)).numpy()
    assert auc(fresh.labels, logits) > 0.75  # the true probabilities reach 0.80, single features 0.5


def test_weights_of_known_ids_outlive_a_grown_vocabulary(tmp_path: Path) -> None:
    old, new = make_spec(1, [8, 6]), make_spec(1, [12, 9], "w2")
    config = crossed(["C0"], ["C1"])
    parent, child = (
        Trainer(build_model(config, spec, seed), make_train(), LocalCollectives())
        for seed, spec in enumerate((old, new))
    )
    with torch.no_grad():
        parent.model.wide.weights.normal_()  # type: ignore[union-attr]
    save_trained(str(tmp_path), parent, {"feature_spec": old.to_json()}, LocalCollectives())
    warm_start(child, new, *open_trained(str(tmp_path)))
    rows = random_rows(old, 30, seed=3).tensors(1)
    with torch.no_grad():
        assert torch.equal(child.model.eval()(*rows), parent.model.eval()(*rows))


@pytest.mark.parametrize("left", [["C9"], ["L0"], ["I0"]])
def test_products_are_of_features_of_one_id(left: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"model\.crosses names"):
        build_model(crossed(left, ["C0"]), make_spec(1, [5], lists=[4]))


def test_a_compiled_dense_part_cannot_have_products() -> None:
    model = build_model(crossed(["C0"], ["C1"]), make_spec(1, [8, 6]))
    with pytest.raises(ConfigError, match="WideAndDeep needs the raw ids"):
        Trainer(model, make_train().model_copy(update={"compile": True}), LocalCollectives())


def make_train() -> Any:
    return make_config(LakePaths("unused"), model={"architecture": "dlrm"}).train
