"""Models written by ranks and read by one process, early models, and warm starts into any placement."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import save_file

from conf.errors import DataError
from conf.types import ModelConfig, Train
from storage import file_io
from storage.feature_spec import FeatureSpec
from tests.training.checkpoints.layouts import LAYOUTS, FakeTrainer
from tests.training.feature_rows import make_spec
from tests.training.ranks_in_threads import on_ranks
from training.checkpoints import load_model, open_trained, save_model, save_trained
from training.collectives import Collectives, LocalCollectives
from training.loop.run import warm_start
from training.loop.train_step import Trainer
from training.models import build_model
from training.registry import model_json
from training.registry.model_json import ModelFile, is_complete, weights_digest

CPU = torch.device("cpu")
MODEL = ModelConfig.model_validate(
    {"architecture": "dlrm", "embedding_dim": 3, "bottom_mlp": [3], "top_mlp": [5]}
)
SPEC = make_spec(2, [9, 5, 17])


class SpreadTrainer:
    """A rank's part of a real trainer's state: the rows that a layout gives it."""

    def __init__(self, whole: Trainer, layout: str, rank: int, ranks: int) -> None:
        self._fake = FakeTrainer(LAYOUTS[layout], whole.model.embedding.cardinalities, rank, ranks)
        self._rows = tuple(whole.row_state())
        starts = torch.tensor([0, *whole.model.embedding.cardinalities]).cumsum(0).tolist()
        ids = [
            starts[block.feature] + block.first + block.step * torch.arange(block.rows)
            for block in self._fake.blocks
        ]
        self.ids = torch.cat([torch.zeros(0, dtype=torch.int64), *ids])
        self._state = {
            name: value.detach()[self.ids].clone() if name in self._rows else value.detach().clone()
            for name, value in whole.state().items()
        }

    def state(self) -> dict[str, torch.Tensor]:
        return self._state

    def row_state(self) -> Any:
        return dict.fromkeys(self._rows, tuple(self._fake.blocks))


def make_trainer(spec: FeatureSpec = SPEC, seed: int = 0) -> Trainer:
    trainer = Trainer(build_model(MODEL, spec, seed), Train(), LocalCollectives())
    generator = torch.Generator().manual_seed(seed)
    for value in trainer.state().values():
        if value.is_floating_point():
            value.detach().copy_(torch.rand(value.shape, generator=generator))
    return trainer


def describe(spec: FeatureSpec = SPEC) -> dict[str, Any]:
    return {
        "version": "v1",
        "architecture": "dlrm",
        "model": MODEL.model_dump(mode="json"),
        "feature_spec": spec.to_json(),
    }


def save_spread(path: Path, whole: Trainer, layout: str, ranks: int, spec: FeatureSpec = SPEC) -> None:
    def body(collectives: Collectives) -> None:
        spread = SpreadTrainer(whole, layout, collectives.rank, ranks)
        save_trained(str(path), spread, describe(spec), collectives)

    on_ranks(ranks, body)


def same_weights(path: Path, whole: Trainer) -> bool:
    loaded = load_model(str(path), CPU).model.state_dict()
    return all(torch.equal(loaded[name], value) for name, value in whole.model.state_dict().items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_process_reads_what_ranks_wrote(tmp_path: Path, layout: str) -> None:
    whole = make_trainer()
    other = tmp_path / "embeddings-00007-0badf00d.safetensors"
    other.write_text("of an attempt that was killed, or is still running")
    save_spread(tmp_path, whole, layout, 4)
    assert same_weights(tmp_path, whole)
    description = json.loads((tmp_path / "model.json").read_text())
    listed = {entry["name"] for entry in description["files"]}
    assert listed | {other.name} == {path.name for path in tmp_path.glob("*.safetensors")}
    assert listed == {*description["weights"], *description["optimizer"]}
    owners = 3 if layout in ("replicated", "table-wise") else 4
    assert len([name for name in listed if name.startswith("embeddings-")]) == owners


def test_a_model_that_was_not_trained_here_can_score(tmp_path: Path) -> None:
    whole = make_trainer()
    save_model(str(tmp_path), whole.model, describe())
    assert same_weights(tmp_path, whole)
    with pytest.raises(DataError, match=r"its parent's weights: .* missing tensors: \['adagrad"):
        warm_start(make_trainer(), SPEC, *open_trained(str(tmp_path)))


def save_as_before(path: Path, whole: Trainer) -> None:
    """As versions before the blocks of rows did: whole tables, without their lengths."""
    state = {name: value.detach().contiguous() for name, value in whole.state().items()}
    weights = {name[6:]: value for name, value in state.items() if name.startswith("model.")}
    rows = {name: weights.pop(name) for name in ["embedding.weight"]}
    save_file(weights, path / "dense.safetensors")
    save_file(rows, path / "embeddings-00000.safetensors")
    save_file(
        {name: value for name, value in state.items() if name[:6] != "model."}, path / "optimizer.safetensors"
    )
    listed = {
        "weights": ["dense.safetensors", "embeddings-00000.safetensors"],
        "optimizer": ["optimizer.safetensors"],
    }
    (path / "model.json").write_text(json.dumps({**describe(), **listed}))


def test_models_of_earlier_versions_are_read(tmp_path: Path) -> None:
    whole = make_trainer()
    save_as_before(tmp_path, whole)
    assert same_weights(tmp_path, whole)
    child = make_trainer(seed=3)
    warm_start(child, SPEC, *open_trained(str(tmp_path)))
    assert all(torch.equal(child.state()[name], value) for name, value in whole.state().items())
    description = file_io.read_json(f"{tmp_path}/model.json")
    del description["optimizer"]
    (tmp_path / "model.json").write_text(json.dumps(description))
    assert same_weights(tmp_path, whole)
    with pytest.raises(DataError, match="lists no optimizer state"):
        open_trained(str(tmp_path))


@pytest.mark.parametrize("before", ["table-wise", "row-wise"])
@pytest.mark.parametrize("after", ["table-wise", "row-wise", "mixed"])
def test_a_warm_start_reads_old_rows_into_any_placement(tmp_path: Path, before: str, after: str) -> None:
    parent, grown = make_trainer(seed=1), make_spec(2, [9, 8, 20], "w2")
    save_spread(tmp_path, parent, before, 3)
    fresh = make_trainer(grown, 2)
    expected = make_trainer(grown, 2)
    for name, value in expected.state().items():
        old = parent.state()[name]
        if name in expected.row_state():
            for rows, old_rows in zip(value.split([9, 8, 20]), old.split([9, 5, 17]), strict=True):
                rows[: len(old_rows)] = old_rows
        else:
            value.copy_(old)

    def body(collectives: Collectives) -> bool:
        child = SpreadTrainer(fresh, after, collectives.rank, 2)
        warm_start(child, grown, *open_trained(str(tmp_path)))
        wanted = SpreadTrainer(expected, after, collectives.rank, 2).state()
        return all(torch.equal(child.state()[name], value) for name, value in wanted.items())

    assert on_ranks(2, body) == [True, True]


def test_a_model_that_was_cut_is_named(tmp_path: Path) -> None:
    save_spread(tmp_path, make_trainer(), "row-wise", 2)
    path = next(tmp_path.glob("embeddings-00001-*"))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=rf"{path.name} has \d+ bytes, model.json says"):
        load_model(str(tmp_path), CPU)
    assert not is_complete(str(tmp_path))
    path.unlink()
    assert not is_complete(str(tmp_path))
    with pytest.raises(DataError, match=rf"{path.name} is missing"):
        load_model(str(tmp_path), CPU)


@pytest.mark.parametrize("kind", ["embeddings-00001", "optimizer-00000"])
def test_a_changed_byte_is_found_when_the_file_is_read(tmp_path: Path, kind: str) -> None:
    save_spread(tmp_path, make_trainer(), "row-wise", 2)
    path = next(tmp_path.glob(f"{kind}-*"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    message = rf"{path.name} was changed after it was written"

    def body(collectives: Collectives) -> None:
        with pytest.raises(
            DataError, match=rf"rank \d: .*{message}(.|\n)*run train_model for its run date again"
        ):
            open_trained(str(tmp_path), collectives)

    on_ranks(2, body)
    if kind.startswith("embeddings"):
        with pytest.raises(DataError, match=message):
            load_model(str(tmp_path), CPU)
    else:
        assert same_weights(tmp_path, make_trainer())
    assert is_complete(str(tmp_path))
    assert not is_complete(str(tmp_path), checksums=True)


@pytest.mark.parametrize("embeddings", ["stored", "on_demand"])
def test_a_process_compares_a_file_once_and_again_if_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embeddings: Literal["stored", "on_demand"]
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    save_spread(tmp_path, make_trainer(), "row-wise", 2)
    compared = counted_reads(monkeypatch)
    for _ in range(2):
        load_model(str(tmp_path), CPU, embeddings)
    weights = sorted(file_io.read_json(f"{tmp_path}/model.json")["weights"])
    assert sorted(compared) == weights
    path = next(tmp_path.glob("embeddings-00001-*"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=rf"{path.name} was changed after it was written \(its SHA-256"):
        load_model(str(tmp_path), CPU, embeddings)


def test_workers_of_a_machine_compare_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "local").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    save_spread(tmp_path, make_trainer(), "row-wise", 2)
    compared = counted_reads(monkeypatch)
    for _ in range(3):
        monkeypatch.setattr(model_json, "_compared", {})  # as in another worker
        load_model(str(tmp_path), CPU)
    assert len(compared) == len(set(compared)) == 3
    path = next(tmp_path.glob("embeddings-00001-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    os.utime(path, ns=(1, 1))
    monkeypatch.setattr(model_json, "_compared", {})
    with pytest.raises(DataError, match="its SHA-256 differs"):
        load_model(str(tmp_path), CPU)


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read completely from now on."""
    compared: list[str] = []
    read = model_json.damage

    def counted(folder: str, entry: ModelFile) -> str | None:
        compared.append(entry.name)
        return read(folder, entry)

    monkeypatch.setattr(model_json, "damage", counted)
    return compared


def test_models_with_a_crc_only_are_read(tmp_path: Path) -> None:
    whole = make_trainer()
    save_spread(tmp_path, whole, "row-wise", 2)
    description = file_io.read_json(f"{tmp_path}/model.json")
    assert weights_digest(description) is not None
    for entry in description["files"]:
        del entry["sha256"]
    file_io.replace_json(f"{tmp_path}/model.json", {**description, "format_version": 1})
    assert weights_digest(file_io.read_json(f"{tmp_path}/model.json")) is None
    assert same_weights(tmp_path, whole)
    path = next(tmp_path.glob("embeddings-00001-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="its CRC-32 differs"):
        load_model(str(tmp_path), CPU)


def test_the_digest_of_weights_does_not_depend_on_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_spread(tmp_path / name, make_trainer(), "row-wise", 2)
    save_spread(tmp_path / "c", make_trainer(seed=3), "row-wise", 2)
    one, other, different = (
        weights_digest(file_io.read_json(f"{tmp_path}/{name}/model.json")) for name in ("a", "b", "c")
    )
    assert one == other != different


@pytest.mark.parametrize("text", ["", "[1]", '{"weights": 3}', '{"files": [{"name": "x"}]}'])
def test_a_damaged_model_json_is_no_whole_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / "model.json").write_text(text)
    assert not is_complete(str(tmp_path))
    assert "is damaged and has to be trained again: model.json cannot be read" in caplog.text


def test_weights_of_another_architecture_are_named(tmp_path: Path) -> None:
    wider = MODEL.model_copy(update={"top_mlp": [6]}).model_dump(mode="json")
    save_model(str(tmp_path), make_trainer().model, {**describe(), "model": wider})
    with pytest.raises(DataError, match=r"the weights do not fit architecture dlrm: .* has shape"):
        load_model(str(tmp_path), CPU)


def test_a_model_of_numbers_that_are_none_is_not_saved(tmp_path: Path) -> None:
    whole = make_trainer()
    whole.state()["model.embedding.weight"][8, 1] = torch.nan
    with pytest.raises(DataError, match=r"after the last step, model\.embedding\.weight contains numbers"):
        save_trained(str(tmp_path), whole, describe(), LocalCollectives())
    assert list(tmp_path.iterdir()) == []
