"""Tables whose rows stay in files: the same scores as with all rows in memory, within less memory."""

from __future__ import annotations

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from conf.types import MultiHot
from storage.feature_spec import FeatureSpec
from tests.training.architectures import SEQUENCE_VARIANTS, VARIANTS, small_spec, variant
from tests.training.checkpoints.layouts import LAYOUTS
from tests.training.checkpoints.test_models_on_disk import (
    CPU,
    SPEC,
    describe,
    make_trainer,
    save_as_before,
    save_spread,
)
from tests.training.feature_rows import make_spec, random_rows
from tests.training.test_kernels import ROOT, plain_environment
from training.checkpoints import load_model, save_model
from training.checkpoints.stored import spans_of
from training.checkpoints.tensor_file import TensorFile
from training.embeddings.scoring_tables import KeptRows, RowsOnDemand
from training.embeddings.table import tables_of
from training.models import build_model


def logits(model: Any, spec: FeatureSpec, rows: int = 40, seed: int = 0) -> Tensor:
    dense, categorical = random_rows(spec, rows, seed).tensors(3)
    with torch.inference_mode():
        return model(dense, categorical)


def kept_rows(model: Any) -> list[tuple[RowsOnDemand, KeptRows]]:
    """The tables of a model, with the rows that each of them keeps."""
    tables = [table for table in tables_of(model).values() if isinstance(table, RowsOnDemand)]
    return [(table, table._kept) for table in tables if table._kept is not None]


def most_rows(model: Any, rows: int) -> None:
    """Lets each table keep so many rows."""
    for _, kept in kept_rows(model):
        kept._most_rows = rows


@pytest.mark.parametrize("name", [*VARIANTS, *SEQUENCE_VARIANTS])
@pytest.mark.parametrize("storage", ["fp32", "bf16"])
def test_every_architecture_scores_the_same(tmp_path: Path, name: str, storage: str) -> None:
    spec = small_spec(name)
    config = variant(name, embedding_storage=storage, multi_hot=MultiHot(max_length=3))
    description = {
        **describe(spec),
        "architecture": config.architecture,
        "model": config.model_dump(mode="json"),
    }
    save_model(str(tmp_path), build_model(config, spec, seed=5), description)
    whole = load_model(str(tmp_path), CPU).model
    model = load_model(str(tmp_path), CPU, "on_demand", rows_mib=1).model
    assert all(table.weight.numel() == 0 for table in tables_of(model).values())
    assert len(kept_rows(model)) == len(tables_of(model))
    most_bytes = sum(kept._most_rows * table.row_bytes for table, kept in kept_rows(model))
    assert 0.99 * 2**20 < most_bytes <= 2**20, "all tables share `rows_mib`"
    for seed in range(3):
        assert torch.equal(logits(model, spec, seed=seed), logits(whole, spec, seed=seed))
    most_rows(model, 4)  # fewer than a lookup needs
    assert torch.equal(logits(model, spec, seed=4), logits(whole, spec, seed=4))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_found_wherever_ranks_wrote_them(tmp_path: Path, layout: str) -> None:
    save_spread(tmp_path, make_trainer(), layout, 4)
    whole, model = (load_model(str(tmp_path), CPU, form).model for form in ("stored", "on_demand"))
    assert torch.equal(logits(model, SPEC), logits(whole, SPEC))
    starts = torch.tensor([0, *SPEC.cardinalities]).cumsum(0)[:-1]
    ids = torch.stack([torch.arange(17).clamp(max=count - 1) for count in SPEC.cardinalities], dim=1)
    assert torch.equal(model.embedding(ids), whole.embedding.weight.detach()[ids + starts])


def test_models_of_earlier_versions_are_read(tmp_path: Path) -> None:
    save_as_before(tmp_path, make_trainer())
    whole, model = (load_model(str(tmp_path), CPU, form).model for form in ("stored", "on_demand"))
    assert torch.equal(logits(model, SPEC), logits(whole, SPEC))


def test_only_the_rows_that_are_needed_are_read_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(0, [100_000, 50_000])
    save_model(str(tmp_path), build_model(DLRM, spec), {**describe(spec), **OF_DLRM})
    model: Any = load_model(str(tmp_path), CPU, "on_demand").model
    read: list[NDArray[np.int64]] = []
    read_places = TensorFile.read_places

    def recorded(file: TensorFile, name: str, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        read.append(places)
        return read_places(file, name, places)

    monkeypatch.setattr(TensorFile, "read_places", recorded)
    ids = torch.tensor([[5, 7], [6, 49_999], [5, 7], [99_999, 0]])
    first = model.embedding(ids)
    assert [places.tolist() for places in read] == [[5, 6], [99_999], [100_000, 100_007], [149_999]]
    assert torch.equal(model.embedding(ids), first)
    assert len(read) == 4
    model.embedding(torch.tensor([[8, 7]]))
    assert [places.tolist() for places in read[4:]] == [[8]]


def test_files_without_some_rows_are_named(tmp_path: Path) -> None:
    save_spread(tmp_path, make_trainer(), "row-wise", 2)
    model: Any = load_model(str(tmp_path), CPU, "on_demand").model
    rows = model.embedding._kept._read.__self__
    rows._blocks = [block for block in rows._blocks if block.block.first == 0]
    with pytest.raises(DataError, match=r"has only \d+ of 3 rows of embedding.weight"):
        model.embedding(torch.tensor([[0, 1, 2]]))


@given(
    places=st.lists(st.integers(0, 400), unique=True).map(lambda it: np.array(sorted(it), dtype=np.int64)),
    gap=st.integers(0, 60),
    most=st.integers(1, 300),
    row_bytes=st.integers(1, 20),
)
def test_spans_cover_every_place_once(places: NDArray[np.int64], gap: int, most: int, row_bytes: int) -> None:
    spans = spans_of(places, gap, most, row_bytes)
    assert [place for span in spans for place in places[span].tolist()] == places.tolist()
    for span in spans:
        part = places[span]
        assert len(part)
        assert (part[-1] - part[0] + 1) * row_bytes <= max(most, row_bytes)
        assert all((right - left - 1) * row_bytes <= gap for left, right in itertools.pairwise(part))


def of_number(rows: Tensor) -> Tensor:
    return rows.float().unsqueeze(1) * torch.tensor([1.0, -2.0])


@given(
    lookups=st.lists(
        st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), min_size=1, max_size=12
    ),
    most=st.integers(1, 20),
)
def test_kept_rows_are_those_that_were_read(lookups: list[list[int]], most: int) -> None:
    kept = KeptRows(of_number, most, torch.zeros(0, 2))
    longest = max(map(len, lookups))
    for lookup in lookups:
        rows = torch.tensor(sorted(lookup))
        matrix, places = kept.find(rows)
        assert torch.equal(matrix[places], of_number(rows))
        assert len(kept._rows) <= len(matrix) <= max(most, longest)


def test_threads_look_up_at_the_same_time() -> None:
    kept = KeptRows(of_number, 50, torch.zeros(0, 2))
    generator = torch.Generator().manual_seed(0)
    lookups = [torch.randint(0, 200, (30,), generator=generator).unique() for _ in range(400)]

    def look_up(rows: Tensor) -> bool:
        matrix, places = kept.find(rows)
        return torch.equal(matrix[places], of_number(rows))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(look_up, lookups))


DLRM = variant("dlrm", bottom_mlp=[])
OF_DLRM = {"architecture": "dlrm", "model": DLRM.model_dump(mode="json")}

# Loads a model and scores some rows, with so much more memory than before the model was loaded.
PROGRAM = """
import resource, sys
import torch
from conf.errors import InfrastructureError
from training.checkpoints import load_model

torch.set_num_threads(1)
torch.mm(torch.ones(64, 64), torch.ones(64, 64))
path, form, mib = sys.argv[1], sys.argv[2], int(sys.argv[3])
used = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
limit = (int(used.split()[1]) << 10) + (mib << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
model = load_model(path, torch.device("cpu"), form, rows_mib=8).model
generator = torch.Generator().manual_seed(0)
total = 0.0
with torch.inference_mode():
    for _ in range(30):
        ids = torch.randint(0, 2_000_000, (2_000, 2), generator=generator)
        total += float(model(torch.zeros(2_000, 0), ids).double().sum())
print(repr(total))
"""


@pytest.mark.processes
def test_a_model_many_times_larger_than_the_memory_scores_the_same(tmp_path: Path) -> None:
    """Tables of 128 MiB. With all rows in memory, 100 MiB do not suffice; with rows on demand, 32 MiB do."""
    spec = make_spec(0, [2_000_000, 2_000_000])
    save_model(str(tmp_path), build_model(DLRM, spec), {**describe(spec), **OF_DLRM})

    def run(form: str, mib: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), form, str(mib)]
        return subprocess.run(command, capture_output=True, text=True, env=plain_environment(), cwd=ROOT)

    within = run("on_demand", 32)
    assert within.returncode == 0, within.stderr[-2000:]
    too_small = run("stored", 100)
    assert too_small.returncode != 0
    assert "can't allocate memory" in too_small.stderr
    enough = run("stored", 400)
    assert enough.returncode == 0, enough.stderr[-2000:]
    assert within.stdout == enough.stdout
