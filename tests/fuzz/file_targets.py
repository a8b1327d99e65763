"""Targets for the readers of JSON, tensors and YAML: each file is read, or refused with an error of conf/errors.py."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from conf.errors import ConfigError, DataError
from conf.load import load_config
from conf.messages import is_printable
from storage.format_versions import MANIFEST
from storage.manifest import MANIFEST_NAME, FileEntry, Manifest, load_manifest
from storage.paths import Partition
from tests.fuzz.inputs import divided, with_wrong_value
from tests.processes import ROOT
from training.checkpoints.tensor_file import TensorFile

_HEADER = {
    "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]},
    "e": {"dtype": "BF16", "shape": [0, 4], "data_offsets": [32, 32]},
}


class FileTarget:
    """A target that reads files in a temporary folder."""

    def __init__(self, _: Sequence[Path]) -> None:
        self.folder = Path(tempfile.mkdtemp())


class Manifests(FileTarget):
    """Manifests: damaged text, and JSON with a wrong value."""

    def corpus(self) -> list[bytes]:
        entry = FileEntry("../../_data/table/dt=2026-01-01/a-0.parquet", 3, 100, (2, 1), "train", "0" * 32)
        manifest = Manifest(
            "table",
            "2026-01-01",
            (entry,),
            (("user", "string"),),
            {"raw": "digest"},
            rows_in=4,
            dropped={"reason": 1},
            facts={"n": 1},
            damaged=(entry.path,),
        )
        return [
            json.dumps(MANIFEST.stamp(manifest.to_json())).encode(),
            b"{}",
            b"[]",
            b'{"format_version": 1}',
        ]

    def run(self, data: bytes) -> None:
        draw, text = divided(data)
        partition = Partition("table", "2026-01-01", str(self.folder))
        if draw.random() < 0.5:
            text = with_wrong_value(draw, json.loads(self.corpus()[0]))
        Path(partition.file(MANIFEST_NAME)).write_bytes(text)
        try:
            manifest = load_manifest(partition)
        except DataError as error:
            _check_message(error)
            return
        assert manifest.rows >= 0
        assert manifest.bytes >= 0
        assert manifest.digest
        json.dumps(manifest.to_json())


class Tensors(FileTarget):
    """Files of tensors: damaged bytes, and headers with a wrong value."""

    def corpus(self) -> list[bytes]:
        return [self._file(json.dumps(_HEADER).encode()), self._file(b"{}"), b"\0" * 8]

    def run(self, data: bytes) -> None:
        draw, content = divided(data)
        if draw.random() < 0.5:
            content = self._file(with_wrong_value(draw, json.loads(json.dumps(_HEADER))))
        path = self.folder / "w.safetensors"
        path.write_bytes(content)
        try:
            with TensorFile(str(path)) as file:
                for name in file.header:
                    assert list(file.read(name).shape) == file.shape(name)
        except DataError as error:
            _check_message(error)

    @staticmethod
    def _file(header: bytes) -> bytes:
        return len(header).to_bytes(8, "little") + header + bytes(range(32))


class Yaml(FileTarget):
    """Configuration files: damaged text, and YAML with a wrong value."""

    _GOOD = "conf/datasets/generated.yaml"

    def corpus(self) -> list[bytes]:
        shipped = sorted((ROOT / "conf/datasets").glob("*.yaml"))
        return [*(path.read_bytes() for path in shipped), b"a: &x [1]\nb: *x\n", b"{}", b"? [a]\n: b\n"]

    def run(self, data: bytes) -> None:
        draw, text = divided(data)
        path = self.folder / "damaged.yaml"
        if draw.random() < 0.3:
            values = yaml.safe_load((ROOT / self._GOOD).read_text(encoding="utf-8"))
            text = with_wrong_value(draw, values)  # JSON is YAML
        path.write_bytes(text)
        try:
            load_config(str(path))
        except ConfigError as error:
            _check_message(error)


def _check_message(error: Exception) -> None:
    """Checks that a message can be printed on a terminal."""
    assert is_printable(str(error).replace("\n", "")), f"{str(error)!a}"
