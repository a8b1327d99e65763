"""Checkpoints and models on s3://, against a server of the S3 protocol."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conf.errors import DataError
from conf.types import Profile
from storage import file_io
from tests.etl.lakes import servers
from tests.training.architectures import variant
from tests.training.checkpoints.layouts import LAYOUTS, FakeTrainer, equal
from tests.training.checkpoints.test_models_on_disk import CPU, SPEC, SpreadTrainer, describe, make_trainer
from tests.training.feature_rows import make_spec
from tests.training.ranks_in_threads import on_ranks
from training.checkpoints import Checkpoints, Position, load_model, open_trained, save_model, save_trained
from training.checkpoints.checkpoints import log
from training.checkpoints.tensor_file import TensorFile
from training.collectives import Collectives, LocalCollectives
from training.loop.progress_output import StepProfiler
from training.loop.run import warm_start
from training.models import build_model

CARDINALITIES = [9, 5, 17]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.bucket(tmp_path_factory.mktemp("s3"), "trainings"):
        yield "s3://trainings"


def names(folder: str) -> list[str]:
    return [info.base_name for info in file_io.list_files(folder)]


def test_checkpoints_are_kept_damaged_and_resharded(bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = f"{bucket}/checkpoints/v1"

    def body(collectives: Collectives) -> None:
        with Checkpoints(folder, collectives) as opened:
            for step in (5, 10, 15):
                trainer = FakeTrainer(LAYOUTS["row-wise"], CARDINALITIES, collectives.rank, 2).fill(step)
                opened.save(trainer, Position(step))
            opened.wait()

    on_ranks(2, body)
    assert [name for name in names(folder) if name.endswith(".json")] == [
        "step-000000000010.json",
        "step-000000000015.json",
    ]
    (newest,) = [name for name in names(folder) if name.startswith("step-000000000015.") and "dense" in name]
    file_io.replace_text(f"{folder}/{newest}", "half an upload")
    trainer = FakeTrainer(LAYOUTS["table-wise"], CARDINALITIES)
    with Checkpoints(folder, LocalCollectives()) as opened, caplog.at_level("WARNING", log.name):
        position = opened.restore(trainer)
        assert position is not None
        assert position.step == 10
        assert newest in caplog.text
        assert equal(trainer, FakeTrainer(LAYOUTS["table-wise"], CARDINALITIES).fill(10))
        assert not [name for name in names(folder) if name.startswith("step-000000000015.")]
        opened.delete()
    assert names(folder) == []


def test_models_are_written_read_and_started_from(bucket: str, tmp_path: Path) -> None:
    path, whole = f"{bucket}/models/tiny/v1", make_trainer(seed=4)

    def body(collectives: Collectives) -> None:
        spread = SpreadTrainer(whole, "mixed", collectives.rank, 2)
        save_trained(path, spread, describe(), collectives)

    on_ranks(2, body)
    loaded = load_model(path, CPU).model.state_dict()
    assert all(bool((loaded[name] == value).all()) for name, value in whole.model.state_dict().items())
    child = make_trainer(seed=5)
    warm_start(child, SPEC, *open_trained(path))
    assert all(bool((child.state()[name] == value).all()) for name, value in whole.state().items())
    file_io.delete_file(f"{path}/model.json")
    with pytest.raises(DataError, match="has no complete model"):
        load_model(path, CPU)


def test_a_profile_is_written_to_the_store(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = f"{bucket}/checkpoints/v2.profile"
    profiler = StepProfiler(Profile(first_step=3, steps=1), folder, 0)
    state: Any = SimpleNamespace(step=3)
    profiler.on_step_start(state)
    torch.ones(3).sum()
    profiler.on_step_end(state, None)  # type: ignore[arg-type]
    assert names(folder) == ["rank0-steps3-3.json.gz"]
    files, inner = file_io.filesystem(f"{folder}/rank0-steps3-3.json.gz")
    with files.open_input_stream(inner, compression=None) as stream:
        assert json.loads(gzip.decompress(stream.read()))["traceEvents"]
    assert list(tmp_path.iterdir()) == []


def test_rows_on_demand_are_read_by_ranges(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, spec = f"{bucket}/models/large/v1", make_spec(0, [200_000, 4])
    config = variant("dlrm", bottom_mlp=[])
    description = {**describe(spec), "model": config.model_dump(mode="json")}
    save_model(path, build_model(config, spec, seed=2), description)
    whole, model = (load_model(path, CPU, form).model for form in ("stored", "on_demand"))
    read: list[int] = []
    read_places = TensorFile.read_places

    def counted(file: TensorFile, name: str, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        read.append(int(places[-1] - places[0] + 1) * 32)
        return read_places(file, name, places)

    monkeypatch.setattr(TensorFile, "read_places", counted)
    ids = torch.tensor([[3, 1], [4, 2], [150_000, 1], [199_999, 0]])
    dense = torch.zeros(len(ids), 0)
    with torch.inference_mode():
        assert torch.equal(model(dense, ids), whole(dense, ids))
    assert len(read) == 4  # 3 and 4 together; and the second feature
    assert sum(read) < 1_000 < 200_000 * 32
