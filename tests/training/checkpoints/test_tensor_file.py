"""Our reader and writer of safetensors beside the library's own, by rows and strides; damage is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conf.errors import DataError, InfrastructureError
from training.checkpoints import tensor_file
from training.checkpoints.tensor_file import TensorFile, write_tensors
from training.registry.model_json import damage

TENSORS = {
    "a": torch.arange(60, dtype=torch.float32).view(20, 3),
    "half": torch.arange(14).to(torch.bfloat16).view(7, 2),
    "odd": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, 4),
}


@pytest.fixture(params=[1 << 26, 16])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in pieces smaller than two rows."""
    monkeypatch.setattr(tensor_file, "CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("_chunks")
def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    pieces = {name: [value] for name, value in TENSORS.items()}
    pieces["a"] = [TENSORS["a"][:5], TENSORS["a"][5:5], TENSORS["a"][5:]]
    entry = write_tensors(str(tmp_path), "x.safetensors", pieces)
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value), name
    assert entry.bytes == (tmp_path / "x.safetensors").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.usefixtures("_chunks")
def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"by": "the library"})
    with TensorFile(str(tmp_path / "x.safetensors")) as file:
        assert set(file.header) == set(TENSORS)
        for name, value in TENSORS.items():
            assert torch.equal(file.read(name), value), name
        for first, step, rows in [(0, 1, 20), (3, 1, 5), (0, 3, 7), (2, 5, 4), (19, 1, 1)]:
            into = torch.zeros(2 * rows, 3)[::2]  # rows that do not follow each other
            file.read_rows("a", first, step, into)
            assert torch.equal(into, TENSORS["a"][first::step][:rows])
        whole = torch.zeros(20, 3)
        file.read_rows("a", 0, 1, whole)
        assert torch.equal(whole, TENSORS["a"])
        wider = torch.zeros(3, 2)
        file.read_rows("half", 1, 2, wider)
        assert torch.equal(wider, TENSORS["half"][1::2].float())


def test_no_more_than_a_chunk_is_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "CHUNK_BYTES", 4096)
    table = torch.randn(10_000, 8)
    write_tensors(str(tmp_path), "x.safetensors", {"t": [table]})
    sizes = []
    empty = torch.empty

    def counting(*arguments: object, **options: object) -> torch.Tensor:
        tensor = empty(*arguments, **options)  # type: ignore[call-overload]
        sizes.append(tensor.nbytes)
        return tensor

    monkeypatch.setattr(torch, "empty", counting)
    into = torch.zeros(2500, 8)
    with TensorFile(str(tmp_path / "x.safetensors")) as file:
        file.read_rows("t", 1, 4, into)
    assert torch.equal(into, table[1::4])
    assert len(sizes) > 50
    assert max(sizes) <= 4096


@pytest.mark.parametrize("how", ["cut", "flipped", "missing", "longer"])
def test_damage_is_seen(tmp_path: Path, how: str) -> None:
    entry = write_tensors(str(tmp_path), "x.safetensors", {"a": [TENSORS["a"]]})
    assert damage(str(tmp_path), entry) is None
    path = tmp_path / "x.safetensors"
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        flipped = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
        path.write_bytes({"cut": content[:-1], "flipped": flipped, "longer": content + b"0"}[how])
    problem = damage(str(tmp_path), entry)
    assert problem is not None
    assert str(path) in problem


def test_what_is_no_file_of_tensors_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.safetensors is missing"):
        TensorFile(str(tmp_path / "none.safetensors"))
    for content in (b"", b"12", b"\xff" * 8, bytes(8)):
        (tmp_path / "x").write_bytes(content)
        with TensorFile(str(tmp_path / "x")) as file, pytest.raises(DataError, match="was cut off"):
            file.read("a")
    entry = write_tensors(str(tmp_path), "y.safetensors", {"a": [TENSORS["a"]]})
    path = tmp_path / entry.name
    path.write_bytes(path.read_bytes()[:-4])
    with TensorFile(str(path)) as file, pytest.raises(DataError, match="was cut off at"):
        file.read("a")


def test_a_disk_that_refuses_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(InfrastructureError, match=r"cannot write .*x\.safetensors"):
        write_tensors(str(tmp_path / "a file"), "x.safetensors", {"a": [TENSORS["a"]]})
