"""Written files: reproducible bytes, both layouts, damage, and order in time."""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import etl.synthetic
from conf.errors import InfrastructureError
from conf.types import Generate
from etl.synthetic.click_probability import FEATURES
from etl.synthetic.generate import RawFile, kind_of, write_file
from etl.synthetic.lines import (
    CRITEO,
    NAMED,
    WHOLE,
    LogLayout,
    draw_damage,
    hex_tokens,
    lines,
    reasons_of,
)
from storage.paths import LakePaths
from tests.etl.synthetic import decoded

DAY = "2026-01-08"
SMALL = {"rows_per_day": 3000, "users": 300, "items": 100, "files_per_day": 2}


def _write(folder: Path, **settings: object) -> tuple[list[Path], list[RawFile]]:
    config = Generate.model_validate({**SMALL, **settings})
    partition = LakePaths(str(folder)).raw.partition(DAY)
    written = [write_file(config, partition, file) for file in range(config.files_per_day)]
    return [Path(partition.file(file.name)) for file in written], written


def test_another_attempt_writes_the_same_bytes_under_another_name(tmp_path: Path) -> None:
    first, written = _write(tmp_path)
    again, _ = _write(tmp_path)
    for one, other, file in zip(first, again, written, strict=True):
        assert one.name != other.name
        assert one.read_bytes() == other.read_bytes()
        assert sha256(one.read_bytes()).hexdigest() == file.sha256
        assert one.stat().st_size == file.bytes
    assert first[0].read_bytes() != first[1].read_bytes()


@pytest.mark.parametrize("change", [{"seed": 43}, {"users": 301}, {"missing_share": 0.5}])
def test_other_settings_give_other_bytes(tmp_path: Path, change: dict[str, object]) -> None:
    assert _write(tmp_path)[0][0].read_bytes() != _write(tmp_path, **change)[0][0].read_bytes()


def test_gzip_files_have_the_same_lines_and_are_reproducible(tmp_path: Path) -> None:
    plain, _ = _write(tmp_path)
    packed, _ = _write(tmp_path, compression="gzip")
    again, _ = _write(tmp_path, compression="gzip")
    assert all(path.name.endswith(".tsv.gz") for path in packed)
    assert decoded.split_lines(plain, "\t", False) == decoded.split_lines(packed, "\t", False)
    assert [path.read_bytes() for path in packed] == [path.read_bytes() for path in again]


def test_a_file_of_several_blocks_has_one_header_and_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etl.synthetic.lines._BLOCK_ROWS", 400)
    paths, written = _write(tmp_path, layout="named", compression="gzip", malformed_share=0.0)
    rows = decoded.split_lines(paths, ",", header=True)
    assert len(rows) == 3000
    assert [file.summary.rows for file in written] == [1500, 1500]
    assert not any("event_time" in row for row in rows)
    seconds = [int(row[1]) for row in rows]
    assert seconds == sorted(seconds)


def test_both_layouts_have_the_same_rows(tmp_path: Path) -> None:
    criteo, _ = _write(tmp_path / "criteo", malformed_share=0.05)
    named, _ = _write(tmp_path / "named", layout="named", malformed_share=0.05)
    readable = decoded.named_rows(named)
    midnight = pd.Timestamp(DAY, tz="UTC").timestamp()
    assert readable["event_time"].between(midnight, midnight + 86_399).all()
    assert readable["event_time"].is_monotonic_increasing
    assert ((readable["event_time"] - midnight) // 10_800 == readable["hour_bucket"]).mean() > 0.95
    pd.testing.assert_frame_equal(decoded.criteo_rows(criteo), readable.drop(columns="event_time"))


def test_damage_does_not_change_other_rows(tmp_path: Path) -> None:
    whole, _ = _write(tmp_path / "whole", malformed_share=0.0)
    broken, _ = _write(tmp_path / "broken", malformed_share=0.2)
    before, after = (decoded.split_lines(paths, "\t", False) for paths in (whole, broken))
    same = [one == other for one, other in zip(before, after, strict=True)]
    assert 0.76 < np.mean(same) < 0.84


@pytest.mark.parametrize("layout", [CRITEO, NAMED], ids=lambda layout: layout.format)
def test_each_reason_breaks_a_row_in_its_own_way(layout: LogLayout) -> None:
    texts = [hex_tokens(name, np.arange(2)) for name in layout.names]
    plain = lines(layout, texts, np.full(2, WHOLE)).decode().splitlines()
    for index, reason in enumerate(reasons_of(layout)):
        broken = lines(layout, texts, np.full(2, index)).decode().splitlines()
        kind, _, column = reason.partition(":")
        for row, (line, whole) in enumerate(zip(broken, plain, strict=True)):
            fields, expected = line.split(layout.separator), whole.split(layout.separator)
            if kind == "field_count":
                assert len(fields) == len(expected) + (1 if row else -1)
                continue
            changed = [layout.names[i] for i, text in enumerate(fields) if text != expected[i]]
            assert changed == [column]
            assert (
                fields[layout.names.index(column)]
                == {"integer": "n/a", "label": "2", "missing_key": ""}[kind]
            )


def test_the_four_kinds_of_damage_are_equally_frequent() -> None:
    damage = draw_damage(CRITEO, np.random.default_rng(0), 400_000, 0.1)
    broken = damage[damage != WHOLE]
    assert len(broken) == pytest.approx(40_000, rel=0.03)
    kinds = Counter(reasons_of(CRITEO)[index].split(":")[0] for index in broken.tolist())
    assert set(kinds) == {"field_count", "integer", "label", "missing_key"}
    assert all(count == pytest.approx(10_000, rel=0.05) for count in kinds.values())


def test_hex_tokens_are_a_bijection_that_differs_by_column() -> None:
    codes = np.arange(50_000)
    tokens = {name: hex_tokens(name, codes).to_pylist() for name in ("C1", "C2")}
    for column_tokens in tokens.values():
        assert len(set(column_tokens)) == len(codes)
        assert all(re.fullmatch("[0-9a-f]{8}", token) for token in column_tokens[:100])
    assert tokens["C1"] != tokens["C2"]
    assert hex_tokens("C1", codes + 2**32).to_pylist() == tokens["C1"]


def test_the_package_documents_every_column_in_order() -> None:
    listed = re.findall(r"^    ([IC]\d+) +(\w+) +(.*)$", etl.synthetic.__doc__ or "", re.MULTILINE)
    assert [(criteo, name) for criteo, name, _ in listed] == [
        (column.criteo, column.name) for column in FEATURES
    ]
    for column, (_, _, meaning) in zip(FEATURES, listed, strict=True):
        if column.kind == "category":
            assert re.search(rf"\b{column.levels}\b", meaning), column.name
    assert kind_of(Generate()).layout.names == ("label", *(column.criteo for column in FEATURES))


def test_a_folder_that_cannot_be_written_is_an_infrastructure_error(tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("a file where the folder should be")
    with pytest.raises(InfrastructureError, match=r"cannot write .*clicks-00000"):
        _write(tmp_path)
