"""Trainings on a device that is not the CPU (tests/checked_device.py) end as those on the CPU do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from storage.paths import LakePaths
from tests.checked_device import checked_device
from tests.training.architectures import SEQUENCE_VARIANTS, VARIANTS, small_spec, variant
from tests.training.choices import SPEC, choices
from tests.training.feature_rows import random_rows
from tests.training.feature_tables import make_config, publish_all
from tests.training.test_architectures import LISTS, RUN_DATE, random_plan
from training.checkpoints import load_model
from training.collectives import LocalCollectives
from training.data.batch import Batch
from training.loop import training_loop
from training.loop.run import run_plan
from training.loop.train_step import Trainer
from training.loop.training_plan import TrainPlan, make_plan
from training.models import build_model

ALL = [*VARIANTS, *SEQUENCE_VARIANTS]
CPU = torch.device("cpu")
OTHER_DEVICE = "tensors on different devices"
ROWS = 256  # each operator takes much longer on the checked device than on the CPU


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def device() -> Iterator[torch.device]:
    with checked_device() as (device, _):
        yield device


def trained(plan: TrainPlan, device: torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description of a training, and the weights of the model that it saved, loaded on the device."""
    description = run_plan(plan, LocalCollectives(), device)
    model = load_model(plan.model_path, device).model
    tensors = [*model.parameters(), *model.buffers()]
    assert all(tensor.device == device for tensor in tensors)
    return description, {name: value.cpu() for name, value in model.state_dict().items()}


def assert_equal_trainings(
    on_device: tuple[Any, Any], on_cpu: tuple[Any, Any], tolerance: float = 1e-4
) -> None:
    (description, weights), (expected, expected_weights) = on_device, on_cpu
    for split in ("validation", "test"):
        mine, other = description["metrics"][split], expected["metrics"][split]
        assert mine["auc"] == pytest.approx(other["auc"], abs=1e-4)
        if other["log_loss"] is None:  # scores that only order items have none
            assert mine["log_loss"] is None
        else:
            assert mine["log_loss"] == pytest.approx(other["log_loss"], rel=tolerance)
        assert mine["rows"] == other["rows"]
    losses = [[entry["loss"] for entry in of["history"]] for of in (description, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=tolerance)
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=10 * tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("name", ALL)
def test_every_architecture_trains_is_measured_saved_and_loaded(
    tmp_path: Path, device: torch.device, name: str
) -> None:
    settings = {"checkpoint_every_steps": 4, "embedding_learning_rate": 0.05}
    plans = [
        random_plan(LakePaths(str(tmp_path / kind)), name, ROWS, **settings) for kind in ("device", "cpu")
    ]
    assert_equal_trainings(trained(plans[0], device), trained(plans[1], CPU))


class Interrupted(Exception):
    """Stands for a killed process."""


def test_a_training_resumes_on_the_device(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"checkpoint_every_steps": 4, "epochs": 2}
    plans = [
        random_plan(LakePaths(str(tmp_path / kind)), "wide_and_deep", ROWS, **settings)
        for kind in ("device", "cpu")
    ]
    original = training_loop.learning_rate_factor

    def limited(step: int, *others: Any) -> float:
        if step == 7:
            raise Interrupted
        return original(step, *others)

    with monkeypatch.context() as patch:
        patch.setattr(training_loop, "learning_rate_factor", limited)
        with pytest.raises(Interrupted):
            run_plan(plans[0], LocalCollectives(), device)
    assert list(Path(plans[0].checkpoint_path).iterdir())
    assert_equal_trainings(trained(plans[0], device), trained(plans[1], CPU))


SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sgd": ({}, {"embeddings": {"optimizer": "sgd"}}),
    "lazy_adam": ({}, {"embeddings": {"optimizer": "lazy_adam"}, "embedding_learning_rate": 0.01}),
    "l2 and clipping": ({}, {"l2": 1e-3, "clip_norm": 0.5}),
    "tables in bf16": ({"embedding_storage": "bf16"}, {}),
    "tables in fp16": ({"embedding_storage": "fp16"}, {}),
    "early stopping": ({}, {"stop_at": {"metric": "auc", "patience": 2}, "evaluate_every_steps": 2}),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_of_a_training(tmp_path: Path, device: torch.device, case: str) -> None:
    model, train = SETTINGS[case]
    plans = [
        random_plan(LakePaths(str(tmp_path / kind)), "dlrm", ROWS, **train) for kind in ("device", "cpu")
    ]
    config = variant("dlrm", multi_hot=LISTS, **model)
    plans = [
        replace(plan, model=config, description={**plan.description, "model": config.model_dump(mode="json")})
        for plan in plans
    ]
    tolerance = 2e-2 if case in ("tables in bf16", "tables in fp16") else 1e-4
    assert_equal_trainings(trained(plans[0], device), trained(plans[1], CPU), tolerance)


LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown ids": ("dlrm", {"unknown_share": {"item": 0.2}}),
    "drawn negatives": ("dlrm", {"negatives": {"per_positive": 4, "popularity": 0.5}}),
    "bpr": ("deepfm", {"loss": "bpr", "negatives": {"per_positive": 3}}),
    "softmax": ("neumf", {"loss": "softmax", "negatives": {"per_positive": 3, "popularity": 1.0}}),
    "full_softmax": ("two_tower", {"loss": "full_softmax"}),
    "in_batch_softmax": ("two_tower_dropout", {"loss": "in_batch_softmax"}),
}


@pytest.mark.parametrize("case", LOSSES)
def test_losses_over_items(tmp_path: Path, device: torch.device, case: str) -> None:
    name, train = LOSSES[case]
    common = {"num_ranks": 1, "num_shards": 4, "device": "cpu", "global_batch_size": 64, "log_every_steps": 1}
    sections = {
        "model": variant(name, multi_hot=LISTS).model_dump(),
        "train": {**common, "embedding_learning_rate": 0.05, **train},
        "keys": {"user": "I0", "item": "label"},
        "negatives": {"per_positive": 2},
    }
    days = {
        split: {date: choices(ROWS, seed, seed).rows}
        for seed, (split, date) in enumerate(
            [("train", "2026-01-02"), ("validation", "2026-01-03"), ("test", RUN_DATE)]
        )
    }
    results = []
    for kind, place in (("device", device), ("cpu", CPU)):
        lake = LakePaths(str(tmp_path / kind))
        dataset = publish_all(lake, RUN_DATE, SPEC, days)  # type: ignore[arg-type]
        results.append(trained(make_plan(make_config(lake, **sections), lake, dataset), place))
    assert_equal_trainings(*results)


def small_batch(name: str) -> Batch:
    rows = random_rows(small_spec(name), 16, 0)
    dense, categorical = rows.tensors(4)
    return Batch(dense, categorical, torch.from_numpy(rows.labels), torch.ones(16), 16)


def trainer_on(device: torch.device, name: str, misplaced: str | None = None) -> Trainer:
    """A trainer whose tensor `misplaced` is left on the CPU."""
    model = build_model(variant(name, multi_hot=LISTS), small_spec(name), 3).to(device).train()
    if misplaced is not None:
        owner = model.get_submodule(misplaced.rpartition(".")[0])
        leaf = misplaced.rpartition(".")[2]
        if leaf in owner._buffers:
            owner._buffers[leaf] = owner.get_buffer(leaf).cpu()
        else:
            owner._parameters[leaf] = nn.Parameter(owner.get_parameter(leaf).detach().cpu())
    train = make_config(LakePaths("unused"), model={"architecture": "dlrm"}).train
    return Trainer(model, train, LocalCollectives())


def use(trainer: Trainer, batch: Batch) -> None:
    """One step and one evaluation."""
    trainer.step(batch, 1.0)
    with torch.no_grad():
        trainer.model.eval()(batch.dense, batch.categorical)
    trainer.model.train()


# Only ranks that exchange rows, and tables of 16 bits, use the rest of a router, and only lists the other table.
UNUSED = re.compile(r"router\.(?!replicated_places)|^item_bias\.router")


@pytest.mark.parametrize("name", ALL)
def test_a_tensor_left_on_the_cpu_is_found_in_every_architecture(device: torch.device, name: str) -> None:
    batch = small_batch(name).to(device)
    whole = trainer_on(device, name)
    use(whole, batch)
    tensors = {**dict(whole.model.named_parameters()), **dict(whole.model.named_buffers())}
    used = [tensor for tensor, value in tensors.items() if value.numel() and not UNUSED.search(tensor)]
    assert len(used) > 2
    for tensor in used:
        with pytest.raises(RuntimeError, match=OTHER_DEVICE):
            use(trainer_on(device, name, tensor), batch)


def test_optimizer_state_left_on_the_cpu_is_found(device: torch.device) -> None:
    batch = small_batch("dlrm").to(device)
    trainer = trainer_on(device, "dlrm")
    trainer._updates._adam.mean = trainer._updates._adam.mean.cpu()
    with pytest.raises(RuntimeError, match=OTHER_DEVICE):
        use(trainer, batch)
    trainer = trainer_on(device, "dlrm")
    (optimizer,) = trainer._updates._row_optimizers.values()
    optimizer.accumulator = optimizer.accumulator.cpu()
    with pytest.raises(RuntimeError, match=OTHER_DEVICE):
        use(trainer, batch)


def test_a_batch_left_on_the_cpu_is_found(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match=OTHER_DEVICE):
        use(trainer_on(device, "dlrm"), small_batch("dlrm"))
