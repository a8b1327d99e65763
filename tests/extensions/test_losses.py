"""A loss of a package trains a model, and a new file of training/losses is all that a loss of the checkout needs."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from pydantic import ValidationError

from conf.errors import ConfigError
from conf.plugins import LOSS
from conf.types import ModelConfig, Train
from jobs.reference import config_schema, configuration_page
from tests.contract.test_config import SMALL
from tests.extensions.conftest import AddToCheckout
from tests.extensions.packages import SHOP, write_package
from tests.training.feature_rows import make_spec, random_rows
from training.collectives import ALONE
from training.data.batch import Batch
from training.loop.forward import read_loss
from training.loop.train_step import Trainer
from training.models import build_model
from training.settings import training_digests

FOCAL = {"focal": {"gamma": 1.5}}


def batch_of(rows: int) -> Batch:
    rng = np.random.default_rng(3)
    labels = torch.from_numpy(rng.integers(0, 2, rows).astype(np.float32))
    none = torch.zeros(rows, 0)
    return Batch(none, none.int(), labels, torch.from_numpy(rng.random(rows).astype(np.float32)), 7.0)


def test_it_is_computed_with_its_settings(shop: Path) -> None:
    batch, logits = batch_of(9), torch.linspace(-3, 3, 9)
    probability = 1 / (1 + np.exp(np.where(batch.labels.numpy() == 1, -logits.numpy(), logits.numpy())))
    for loss, gamma in (("focal", 2.0), (FOCAL, 1.5)):
        terms = (1 - probability) ** gamma * -np.log(probability) * batch.weights.numpy()
        actual = read_loss(Train.model_validate({"loss": loss}).loss)(logits, batch)
        assert float(actual) == pytest.approx(terms.sum() / 7, rel=1e-5)


def test_steps_lower_it(shop: Path) -> None:
    train = Train.model_validate({"loss": FOCAL, "num_shards": 1, "global_batch_size": 32})
    assert train.score_kind(draws=False) == "ranking"
    spec = make_spec(2, [8])
    rows = random_rows(spec, 32, seed=1)
    dense, ids = rows.tensors(0)
    batch = Batch(dense, ids.int(), torch.from_numpy(rows.labels), torch.ones(32), 32.0)
    model = build_model(ModelConfig(architecture="logistic_regression"), spec, seed=1)
    trainer = Trainer(model.train(), train, ALONE)
    losses = [float(trainer.step(batch, 1.0)) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_settings_are_normal_configuration(shop: Path) -> None:
    assert Train.model_validate({"loss": {"focal": None}}).loss == "focal"
    assert Train.model_validate({"loss": {"focal": {}}}) == Train(loss="focal")
    assert Train.model_validate({"loss": {"bce": None}}).model_dump() == Train().model_dump()
    for loss, message in (
        ({"focal": {"gama": 1}}, r"loss\.gama\n  Extra inputs are not permitted"),
        ({"focal": {"gamma": -1}}, r"loss\.gamma\n  Input should be greater than or equal to 0"),
        ({"focal": 3}, "write the name of a loss"),
        ({"focal": {}, "bce": {}}, "write the name of a loss"),
        ("hinge", r"there is no such loss; known: \['bce', .*'focal', .*'softmax'\]"),
    ):
        with pytest.raises(ValidationError, match=message):
            Train.model_validate({"loss": loss})


def test_the_version_depends_on_its_code(shop: Path) -> None:
    assert training_digests(Train(), ["dlrm"]) == {}
    first = training_digests(Train.model_validate({"loss": FOCAL}), ["dlrm"])
    assert [*first] == ["losses.focal"]
    (shop / "focal.py").write_text(f"{(shop / 'focal.py').read_text()}\n# changed\n")
    assert training_digests(Train.model_validate({"loss": FOCAL}), ["dlrm"]) != first


def test_a_loss_that_returns_no_scalar_is_refused(site: Path) -> None:
    text = "from conf.train_types import LossSettings as Settings\nmean_loss = lambda settings, logits, batch: logits\n"
    write_package(site, "mine", {"losses": {"rows": "rows"}}, {"rows": text})
    with pytest.raises(ConfigError, match=r"the loss 'rows', .* returned shape \(4,\), not a scalar tensor"):
        read_loss("rows")(torch.zeros(4), batch_of(4))


def test_one_file_adds_a_loss_to_the_checkout(add_to_checkout: AddToCheckout) -> None:
    before = config_schema()
    add_to_checkout(LOSS, "focal", (SHOP / "focal.py").read_text(encoding="utf-8"))
    assert LOSS.names() == ["bce", "bpr", "focal", "full_softmax", "in_batch_softmax", "softmax"]
    assert float(read_loss("focal")(torch.zeros(4), batch_of(4))) > 0
    assert training_digests(Train(loss="focal"), []) == {}  # the version has the code of the checkout
    for loss, fits in (("focal", True), (FOCAL, True), ({"focal": {"gama": 1}}, False), ("hinge", False)):
        values = {**SMALL, "train": {"loss": loss}}
        assert jsonschema.Draft7Validator(config_schema()).is_valid(values) == fits
        assert not jsonschema.Draft7Validator(before).is_valid(values)
    page = configuration_page()
    assert "`focal`: Cross-entropy of a row times" in page
    section = page.partition("## `train.loss focal`\n")[2].partition("\n## ")[0]
    assert "| `gamma` | number, at least 0 | `2.0` | Exponent." in section
