"""The passes with a device: equal blocks, equal files and equal manifests as with the compiled scanner."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.load import load_config
from conf.types import Config
from device import text_scan
from device.columns import DeviceColumns
from device.text_scan import ScannedText, scan_text
from etl.raw.erased_users import add_erased, list_or_new
from etl.raw.files import require_raw
from etl.readers import text
from etl.synthetic.generate import generate_days, generate_settings
from etl.text import gpu_tasks
from etl.text.encode_pass import DeviceFeatures
from etl.text.gpu_tasks import GpuTasks, scanned_on
from etl.text.parse_block import FileLayout, ParsedBlock, columns_to_parse, layout_of_days, read_split
from etl.workflow.feature_plan import plan_of
from spark.workers import LOCAL_FOLDERS, LocalWorkers
from storage.manifest import MANIFEST_NAME
from storage.paths import LakePaths
from tests.checked_device import checked_device
from tests.device.scanning_process import count_lines
from tests.etl import cases

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]

# A csv log with a time, a filter, lists, features of several columns, and features of training rows.
SHOP: dict[str, Any] = {
    "log": {
        "path": "{data}/dt={date}/*",
        "format": "csv",
        "columns": [
            {"name": "ts", "type": "timestamp"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "int"},
            {"name": "price", "type": "float"},
            {"name": "seen", "type": "list<string>", "separator": ";"},
            {"name": "member", "type": "bool"},
            {"name": "event", "type": "string"},
        ],
        "label": {"column": "event", "positive": ["cart", "buy"]},
        "event_time": {"column": "ts"},
        "null_values": ["", "NULL"],
    },
    "keys": {"user": "user", "item": "item"},
    "prepare": [{"filter": {"keep": "price >= 0"}}],
    "features": [
        {"columns": ["price"], "kind": "dense", "ops": ["fill_median", "log1p", "normalize"]},
        {"columns": ["member"], "kind": "dense", "ops": [{"fill": {"value": 0}}]},
        {"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
        {"columns": ["seen"], "kind": "multi_hot", "ops": ["categorify"]},
        {"columns": ["user", "member"], "kind": "categorical", "ops": [{"hashed_cross": {"buckets": 50}}]},
        {
            "columns": ["item"],
            "kind": "dense",
            "ops": [{"rename": {"suffix": "_rate"}}, {"target_encoding": {}}],
        },
    ],
    "scopes": {},
    "quality": {"max_bad_share": 0.9},
}
TARGETS = {
    "features": [
        *cases.LOG["features"],
        {"columns": ["C1", "C2"], "kind": "categorical", "ops": [{"hashed_cross": {"buckets": 30}}]},
        {"columns": ["item"], "kind": "dense", "ops": [{"target_encoding": {}}]},
    ],
    "scopes": {},
}


def _no_session() -> SparkSession:
    raise AssertionError("the build needs no Spark session")


class Here(LocalWorkers):
    """Runs tasks in this process. Like other workers, it pickles them."""

    def _map(self, tasks: int, function: Callable[[int], str]) -> list[str]:
        function = pickle.loads(pickle.dumps(function))
        return [function(index) for index in range(tasks)]


class WithGpus(Here):
    """Runs tasks in this process as if this machine had two GPUs."""

    def gpu_groups(self, tasks: int) -> list[range]:
        return [range(tasks // 2), range(tasks // 2, tasks)]


def shop_lines(day: str, rows: int, seed: int, quotes: bool) -> str:
    draw = random.Random(seed)
    lines = ["event,user,ts,item,more,price,seen,member"]
    for row in range(rows):
        event = draw.choice(["view", "view", "cart", "buy", "", "other"])
        user = draw.choice(["", "é", "NULL", *(f"u{n}" for n in range(12))])
        item = draw.choice(["1", "007", "+7", "x", "", str(2**63), "5", "6"])
        time = draw.choice([f"{day}T{draw.randrange(24):02d}:00:00", "", "no time"] + [f"{day} 10:00:00"] * 5)
        price = draw.choice(["-1", "", "0", "-0.0", "9.99", "1e3", "nan", "7"])
        seen = draw.choice(["", "1;2;3", "u1;;u1", "NULL", "é;x"])
        member = draw.choice(["True", "False", "", "maybe"] + ["1"] * 4)
        more = draw.choice(["a", '"b,c"' if quotes and row % 7 == 0 else "b", "d"])
        fields = [event, user, time, item, more, price, seen, member]
        lines.append(",".join(fields if draw.random() < 0.97 else fields[:-1]))
    return "".join(f"{line}\n" for line in lines)


def write_shop(folder: Path, rows: int = 100) -> Config:
    """A log of three days: of two files each, one of them with quotes and CR LF."""
    config = cases.write_config(folder, SHOP)
    for seed, day in enumerate(DAYS):
        (folder / f"raw/dt={day}").mkdir(parents=True)
        plain = shop_lines(day, rows, seed, quotes=False)
        (folder / f"raw/dt={day}/a.csv").write_bytes(b"\xef\xbb\xbf" + plain.encode())
        quoted = shop_lines(day, rows, seed + 10, quotes=True).replace("\n", "\r\n")
        (folder / f"raw/dt={day}/b.csv").write_bytes(quoted.encode()[:-2])
    return config


def write_hard(folder: Path, changes: Mapping[str, Any]) -> Config:
    config = cases.write_config(folder, changes)
    for seed, day in enumerate(DAYS):
        cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, 100, seed))
    return config


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """File splits of a few rows, so that several tasks read a file."""
    monkeypatch.setattr(text, "FILE_SPLIT_BYTES", 2_000)


def build(config: Config, workers: LocalWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCAL_FOLDERS, str(workers.folder))
    cases.run_build(workers, config, DAYS[-1])


def on_gpus(config: Config) -> Config:
    """The configuration with GPUs and another lake."""
    workflow = config.workflow.model_copy(update={"device": "cuda"})
    return config.model_copy(update={"workflow": workflow, "lake": f"{config.lake}-device"})


def published(lake: Path) -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    """The manifest and the bytes of the files of each partition, by its folder, without random names."""
    tables = {}
    for path in sorted(lake.rglob(MANIFEST_NAME)):
        values = json.loads(path.read_text())
        files = [(path.parent / entry["path"]).read_bytes() for entry in values["files"]]
        values["files"] = [{**entry, "path": ""} for entry in values["files"]]
        kept = {
            name: value for name, value in values.items() if name not in ("checksum", "created_at", "lineage")
        }
        tables[path.parent.relative_to(lake).as_posix()] = (kept, files)
    return tables


class Uses:
    """How often the device was used.

    Attributes:
        by_device, by_host: number of blocks that the device has scanned, and left to the host.
        looked_up: the features that a device has looked up.
    """

    def __init__(self) -> None:
        self.by_device, self.by_host, self.looked_up = 0, 0, set[str]()


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> Uses:
    """Lets processes find a GPU: torch's CPU."""
    counted = Uses()

    def counted_scan(*arguments: Any) -> ScannedText | None:
        found = scan_text(*arguments)
        counted.by_device += found is not None
        counted.by_host += found is None
        return found

    def dealt(features: DeviceFeatures, groups: int) -> dict[str, pa.Array]:
        counted.looked_up |= {*features.tables}
        return plain_dealt(features, groups)

    plain_dealt = DeviceFeatures.dealt
    monkeypatch.setattr(text_scan, "scan_text", counted_scan)
    monkeypatch.setattr(DeviceFeatures, "dealt", dealt)
    monkeypatch.setattr(gpu_tasks, "device_of_gpu", lambda gpu: CPU)
    return counted


def assert_published_equal(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with_device = on_gpus(config)
    build(config, Here(2, _no_session), monkeypatch)
    build(with_device, WithGpus(4, _no_session), monkeypatch)
    expected, found = published(Path(config.lake)), published(Path(with_device.lake))
    expected = {name: one for name, one in expected.items() if name.split("/")[0] != "raw"}  # the demo's log
    assert list(found) == list(expected)
    for name, (manifest, files) in expected.items():
        assert found[name][0] == manifest, name
        assert found[name][1] == files, name
    assert any(name.startswith("features") for name in expected)


def test_a_hard_log_gives_equal_files(
    tmp_path: Path, small_splits: None, uses: Uses, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_published_equal(write_hard(tmp_path, TARGETS), monkeypatch)
    assert uses.by_device > 10
    assert uses.by_host == 0
    # A feature of two columns is computed on the host, and so are target encodings of training rows.
    assert {*uses.looked_up} >= {"I1", "I2", "X", "user", "item", "C1", "C2", "C3", "N", "item_te"}
    assert "C1_x_C2" not in uses.looked_up


def test_a_csv_log_gives_equal_files_and_its_quotes_are_left_to_the_host(
    tmp_path: Path, small_splits: None, uses: Uses, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_published_equal(write_shop(tmp_path), monkeypatch)
    assert uses.by_device > 3
    assert uses.by_host > 3
    assert uses.looked_up >= {"price", "member", "user", "item"}
    assert "seen" not in uses.looked_up


@pytest.mark.parametrize("name, ending", [("generated", "tsv"), ("generated_named", "csv")])
def test_the_log_of_the_demo_gives_equal_files(
    tmp_path: Path, uses: Uses, monkeypatch: pytest.MonkeyPatch, name: str, ending: str
) -> None:
    overrides = [
        f"lake={tmp_path / 'lake'}",
        f"log.path={tmp_path / 'lake'}/raw/dt={{date}}/*.{ending}*",  # both lakes read the same log
        "split.train_days=1",
        "split.min_train_days=1",
        "generate.rows_per_day=300",
        "generate.days=3",
    ]
    config = load_config(str(ROOT / f"conf/datasets/{name}.yaml"), overrides)
    generate_days(Here(2, _no_session), LakePaths(config.lake), generate_settings(config), DAYS)
    assert_published_equal(config, monkeypatch)
    assert uses.by_device >= 2 * 2 * len(DAYS)
    assert len(uses.looked_up) > 30


def test_collisions_and_a_full_device_change_nothing(
    tmp_path: Path, uses: Uses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = write_hard(tmp_path, {})
    build(config, Here(2, _no_session), monkeypatch)
    expected = published(Path(config.lake))

    def refuse(block: bytes, *arguments: Any) -> ScannedText | None:
        if len(block) % 3 == 0:
            raise torch.OutOfMemoryError("no memory")
        found = scan_text(block, *arguments)
        return None if len(block) % 3 == 1 else found

    monkeypatch.setattr(text_scan, "scan_text", refuse)
    with_device = on_gpus(config)
    build(with_device, WithGpus(4, _no_session), monkeypatch)
    assert published(Path(with_device.lake)) == expected
    assert "no memory" in caplog.text


def test_a_divided_log_and_prepared_rows_give_equal_files(
    tmp_path: Path, small_splits: None, uses: Uses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One day is divided by position; then rows with histories are stored, and prepared by other tasks."""
    one_day = {**cases.LOG["log"], "path": "{data}/*"}
    shares = {"by": "fraction", "train": 0.5, "validation": 0.2}
    histories: dict[str, Any] = {"history": {"length": 3}, "split": shares, "log": one_day}
    divided: dict[str, Any] = {"split": shares, "log": one_day}
    for name, changes in {"divided": divided, "prepared": histories}.items():
        folder = tmp_path / name
        folder.mkdir()
        config = cases.write_config(folder, changes)
        cases.write_day(folder / "raw", cases.make_lines(DAYS[0], 200, 1))
        for chosen, workers in ((config, Here(2, _no_session)), (on_gpus(config), WithGpus(4, _no_session))):
            monkeypatch.setenv(LOCAL_FOLDERS, str(workers.folder))
            cases.run_build(workers, chosen, DAYS[0])
        assert published(Path(on_gpus(config).lake)) == published(Path(config.lake))
    assert uses.by_device > 5


def test_without_a_gpu_the_compiled_scanner_reads_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = on_gpus(write_hard(tmp_path, {}))
    monkeypatch.setattr("spark.workers.gpus_of_machine", lambda: 0)
    monkeypatch.setattr(gpu_tasks, "device_of_gpu", lambda gpu: pytest.fail("there is no GPU"))
    build(config, Here(2, _no_session), monkeypatch)
    assert "no task has a GPU of its own" in caplog.text


def test_a_null_feature_is_refused_as_on_the_host(
    tmp_path: Path, uses: Uses, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"features": [{"columns": ["X"], "kind": "dense", "ops": ["log1p"]}], "scopes": {}}
    config = write_hard(tmp_path, changes)
    messages = []
    for chosen, workers in ((config, Here(2, _no_session)), (on_gpus(config), WithGpus(4, _no_session))):
        with pytest.raises(DataError, match="null") as error:
            build(chosen, workers, monkeypatch)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_a_group_ends_when_its_results_are_not_needed(
    tmp_path: Path, uses: Uses, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_hard(tmp_path, {})
    layout = layout_of_days(plan_of(config), [require_raw(config, config.log, DAYS[0])])
    done: list[int] = []
    monkeypatch.setattr(gpu_tasks, "are_cancelled", lambda: len(done) >= 3)
    tasks = GpuTasks((range(2), range(2, 100)), threads=1)
    with pytest.raises(CancelledError):
        for _ in tasks.run(1, layout, lambda task, _: done.append(task)):
            pass
    assert done[:3] == [2, 3, 4]
    assert len(done) < 8


@pytest.mark.processes
def test_a_process_of_this_machine_can_scan_on_a_device(tmp_path: Path) -> None:
    config = write_hard(tmp_path, {})
    layout = layout_of_days(plan_of(config), [require_raw(config, config.log, DAYS[0])])
    [lines] = LocalWorkers(2, _no_session, str(tmp_path)).collect(1, partial(count_lines, layout))
    found = [number for of_split in json.loads(lines) for number in of_split]
    assert found == [block.lines for block in blocks_of(layout)]


@pytest.mark.processes
def test_processes_without_a_gpu_do_not_import_torch() -> None:
    program = "import sys, spark.forked_modules, etl.build; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# Blocks, by the layout of a log.


def blocks_of(layout: FileLayout) -> Iterator[ParsedBlock]:
    for file_split in layout.reader.splits():
        yield from read_split(file_split, layout, columns_to_parse(layout, cases_names(layout)))


def cases_names(layout: FileLayout) -> list[str]:
    return [column.name for column in layout.columns]


def assert_blocks_equal(layout: FileLayout, device: torch.device) -> int:
    """Compares the blocks of both scanners. Returns the number of blocks that the device has scanned."""
    on_device = 0
    pairs = zip(blocks_of(scanned_on(layout, device)), blocks_of(layout), strict=True)
    for found, expected in pairs:
        assert (found.bytes, found.lines, found.rejected) == (
            expected.bytes,
            expected.lines,
            expected.rejected,
        )
        assert np.array_equal(found.row_lines, expected.row_lines)
        assert [*found.columns] == [*expected.columns]
        for name, column in expected.columns.items():
            assert found.columns[name].equals(column), name
            if name in expected.counts:
                assert np.array_equal(found.counts[name], expected.counts[name])
            codes = found.columns.on_device(name) if isinstance(found.columns, DeviceColumns) else None
            if codes is not None:
                counts = np.bincount(codes.codes.cpu().numpy(), minlength=len(codes.dictionary) + 1)
                assert np.array_equal(codes.count(), counts)
        assert [*found.counts] == [*expected.counts]
        lines = list(found.rejected)
        assert found.texts(lines) == expected.texts(lines)
        on_device += isinstance(found.columns, DeviceColumns)
    return on_device


def test_erased_users_are_left_out_as_by_the_host(tmp_path: Path) -> None:
    config = write_hard(tmp_path, {})
    lake = LakePaths(config.lake)
    add_erased(lake, list_or_new(lake), ["user 3", "user 8"], DAYS[0])
    layout = layout_of_days(plan_of(config), [require_raw(config, config.log, DAYS[0])])
    assert layout.erased
    assert assert_blocks_equal(layout, CPU) == 3


def test_tensors_of_the_passes_stay_on_the_device(tmp_path: Path) -> None:
    config = write_shop(tmp_path, rows=40)
    layout = layout_of_days(plan_of(config), [require_raw(config, config.log, DAYS[0])])
    with checked_device() as (device, _):
        assert assert_blocks_equal(layout, device) == 1


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.lists(
            st.sampled_from(
                ["", "0", "1", "2", "+1", "01", "x", "é", "a\0", "NULL", "1e400", "nan", "\x1b", "u" * 300]
            ),
            min_size=12,
            max_size=15,
        ).map("\t".join),
        min_size=1,
        max_size=30,
    ),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    tail=st.sampled_from([b"", b"\xff", b"\n\n", b"1\t"]),
)
def test_any_log_gives_equal_blocks(tmp_path: Path, lines: list[str], end: str, tail: bytes) -> None:
    config = cases.write_config(tmp_path)
    folder = tmp_path / f"raw/dt={DAYS[0]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.tsv").write_bytes(end.join([*lines, ""]).encode() + tail)
    layout = layout_of_days(plan_of(config), [require_raw(config, config.log, DAYS[0])])
    assert_blocks_equal(layout, CPU)
