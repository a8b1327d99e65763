"""The model of a package is trained, saved, loaded and exported like those of training/models."""

from __future__ import annotations

import sys
from pathlib import Path

import jsonschema
import pytest
import torch

from conf.errors import ConfigError
from conf.plugins import MODEL
from conf.types import Config, ModelConfig, Split, Strict
from jobs.checks import check_config
from jobs.reference import config_schema, models_page
from scoring.candidates.sources.retrieval import Settings as Retrieval
from storage.dataset import Dataset
from storage.paths import LakePaths
from tests.contract.test_config import SMALL as CONFIG
from tests.extensions.conftest import AddToCheckout
from tests.extensions.packages import SHOP, forget_shop, write_package
from tests.training.feature_rows import Rows, make_spec, random_rows, segment_rows
from tests.training.feature_tables import make_config, publish_all
from training.checkpoints import load_model
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan
from training.models import build_model
from training.models.factorization import VectorModel
from training.registry.versions import retriever_config
from training.settings import complete, known_architectures

RUN_DATE = "2026-01-04"
SMALL = {"architecture": "small_network", "hidden": 8}
FACTORS = """
from torch import Tensor
from nightrank.extending import ClickModel, Inputs, Strict, VectorModel


class Settings(Strict):
    embedding_dim: int = 4


VECTORS = True


class Factors(ClickModel, VectorModel):
    def __init__(self, settings, inputs):
        super().__init__()
        self.embedding = inputs.table(settings.embedding_dim)
        self.user, self.item = (inputs.embedded_scopes.index(scope) for scope in ("user", "item"))

    def embed(self, categorical):
        return [self.embedding(categorical)]

    def forward_dense(self, dense, vectors):
        return (vectors[0][:, self.user] * vectors[0][:, self.item]).sum(dim=1).float()

    def user_vectors(self, dense, categorical):
        return self.embedding(categorical)[:, self.user].float()

    def item_vectors(self, dense, categorical):
        return self.embedding(categorical)[:, self.item].float()


def build(settings, inputs):
    return Factors(settings, inputs)
"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def publish(lake: LakePaths) -> Dataset:
    spec, train = segment_rows(4_000, seed=1)
    days: dict[Split, dict[str, Rows]] = {
        "train": {"2026-01-02": train},
        "validation": {"2026-01-03": segment_rows(1_000, 2)[1]},
        "test": {RUN_DATE: segment_rows(1_000, 3)[1]},
    }
    return publish_all(lake, RUN_DATE, spec, days)


def config_of(lake: LakePaths, **model: object) -> Config:
    train = {"global_batch_size": 256, "epochs": 4, "num_ranks": 1, "device": "cpu"}
    return make_config(lake, model={**SMALL, **model}, train=train)


def test_it_is_trained_and_loaded(shop: Path, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path / "lake"))
    plan = make_plan(config_of(lake), lake, publish(lake))
    description = train_in_process(plan)
    assert description["architecture"] == "small_network"
    assert description["model"]["embedding_dim"] == 8  # a default of the package
    assert description["history"][-1]["loss"] < description["history"][0]["loss"]
    forget_shop()
    loaded = load_model(plan.model_path, torch.device("cpu")).model
    assert type(loaded).__module__ == "shop_extensions.small_network"
    assert [tuple(weights.shape) for weights in loaded.last.parameters()] == [(1, 8), (1,)]  # type: ignore[union-attr]


def test_its_version_depends_on_the_code_of_the_package(shop: Path, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path / "lake"))
    dataset = publish(lake)
    dlrm = make_config(lake, model={"architecture": "dlrm"}, train={"baselines": []})
    with_baseline = make_config(lake, model={"architecture": "dlrm"}, train={"baselines": ["small_network"]})
    configs = (config_of(lake), with_baseline, dlrm)

    def versions() -> list[str]:
        return [str(make_plan(config, lake, dataset).description["version"]) for config in configs]

    first = versions()
    (shop / "__init__.py").write_text("VERSION = 2\n")
    changed = [before != after for before, after in zip(first, versions(), strict=True)]
    assert changed == [True, True, False]


def test_a_model_with_vectors_is_a_retriever(shop: Path, site: Path, tmp_path: Path) -> None:
    write_package(site, "factors", {"models": {"factors": "factors"}}, {"factors": FACTORS})
    lake = LakePaths(str(tmp_path / "lake"))
    spec = make_spec(0, [30, 20])  # one feature of users, one of items
    rows = random_rows(spec, 600, seed=4)
    days: dict[Split, dict[str, Rows]] = {
        "train": {"2026-01-02": rows},
        "validation": {"2026-01-03": rows},
        "test": {RUN_DATE: rows},
    }
    dataset = publish_all(lake, RUN_DATE, spec, days)
    config = config_of(lake)
    for architecture, message in (("factors", None), ("small_network", "has no vectors of users and items")):
        source = Retrieval(source="retrieval", model=ModelConfig(architecture=architecture))
        candidates = config.candidates.model_copy(update={"sources": [source]})
        retrieving = config.model_copy(update={"candidates": candidates})
        if message is not None:
            with pytest.raises(ConfigError, match=f"candidates.sources, retrieval: .*{message}"):
                check_config(retrieving)
            continue
        check_config(retrieving)
        plan = make_plan(retriever_config(retrieving), lake, dataset)
        train_in_process(plan)
        model = load_model(plan.model_path, torch.device("cpu")).model.eval()
        assert isinstance(model, VectorModel)
        dense, ids = torch.zeros(2, 0), torch.tensor([[3, 4], [5, 6]])
        products = (model.user_vectors(dense, ids) * model.item_vectors(dense, ids)).sum(dim=1)
        torch.testing.assert_close(products, model(dense, ids))


def test_settings_are_checked_by_the_package(shop: Path) -> None:
    for settings, message in (
        ({"hidden": 0}, r"model\.hidden=0: Input should be greater than 0"),
        ({"deep": [8]}, r"architecture small_network: unknown key model\.deep"),
    ):
        with pytest.raises(ConfigError, match=message):
            complete(ModelConfig.model_validate({**SMALL, **settings}))


def test_equal_seeds_give_equal_weights(shop: Path) -> None:
    config, spec = ModelConfig.model_validate(SMALL), make_spec(2, [9, 5])
    first, second, other = (build_model(config, spec, seed=seed) for seed in (1, 1, 2))
    for name, weights in first.state_dict().items():
        assert torch.equal(weights, second.state_dict()[name])
    assert not torch.equal(first.state_dict()["hidden.weight"], other.state_dict()["hidden.weight"])


def test_one_file_adds_a_model_to_the_checkout(add_to_checkout: AddToCheckout) -> None:
    before = jsonschema.Draft7Validator(config_schema())
    add_to_checkout(MODEL, "small_network", (SHOP / "small_network.py").read_text(encoding="utf-8"))
    assert "small_network" in known_architectures()
    spec = make_spec(1, [4, 5])
    model = build_model(ModelConfig.model_validate(SMALL), spec)
    assert type(model).__module__ == "training.architectures.small_network"
    assert complete(ModelConfig.model_validate(SMALL)).settings == {"embedding_dim": 8, "hidden": 8}
    after = jsonschema.Draft7Validator(config_schema())
    values = {**CONFIG, "model": SMALL}
    assert (before.is_valid(values), after.is_valid(values)) == (False, True)
    assert not after.is_valid({**CONFIG, "model": {**SMALL, "deep": 1}})
    section = models_page().partition("## `small_network`\n")[2].partition("\n## ")[0]
    assert "Small network: one hidden layer over dense features and the vectors of ids." in section
    assert "| `hidden` | integer, above 0 | `16` | Width of the hidden layer. |" in section


def test_two_files_keep_its_settings_apart_from_torch(add_to_checkout: AddToCheckout) -> None:
    text = (SHOP / "small_network.py").read_text(encoding="utf-8")
    head, _, rest = text.partition("class Settings")
    settings, _, model = rest.partition("class SmallNetwork")
    imports = "from pydantic import Field\nfrom conf.types import Strict\n\n\n"
    add_to_checkout(MODEL, "small_network", f"{imports}class Settings{settings}", to_settings=True)
    own = "from training.architecture_settings.small_network import Settings\n\n\n"
    add_to_checkout(MODEL, "small_network", f"{head}{own}class SmallNetwork{model}")
    plugin = MODEL.get("small_network")
    assert plugin.settings(Strict).__module__ == "training.architecture_settings.small_network"
    assert plugin.module not in sys.modules
    assert complete(ModelConfig.model_validate(SMALL)).settings == {"embedding_dim": 8, "hidden": 8}
    assert plugin.module not in sys.modules
    build_model(ModelConfig.model_validate(SMALL), make_spec(1, [4, 5]))
    assert plugin.module in sys.modules
