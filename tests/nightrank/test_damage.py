"""Damaged files of a lake: each is detected by the readers of the file, by the package and by fsck."""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nightrank
from conf.errors import NightrankError
from etl.erasure.record import Record, record_path, write_record
from etl.erasure.record import _read as read_erasure
from etl.workflow.local_workflow import load_local
from jobs import fsck, show
from jobs.runner import run_in_application
from jobs.sessions import OwnSession
from jobs.stages.fsck import check_descriptions
from reporting.monitoring.run_record import _read as read_run
from scoring.model.model_info import read_model_info
from storage import dataset, erased_users, feature_spec, file_io
from storage.fsck import check_lake
from storage.id_counts import find_id_counts
from storage.manifest import MANIFEST_NAME, load_manifest
from storage.migration import partition_of_manifest
from storage.paths import LakePaths
from tests.nightrank.conftest import RUN_DATE, World
from training.checkpoints.tensor_file import TensorFile
from training.registry import champion_history, refits, versions

pytestmark = pytest.mark.processes


class Copy:
    """A copy of the lake, whose files the tests change."""

    def __init__(self, root: Path, config: Path) -> None:
        self.root, self.config = root, config
        self.lake = LakePaths(str(root))
        self.changed: dict[Path, bytes] = {}

    def files(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.root.glob(pattern) if path.is_file())

    def write(self, path: Path, content: bytes) -> None:
        self.changed.setdefault(path, path.read_bytes())
        path.write_bytes(content)
        os.utime(path, ns=(0, random.getrandbits(50)))

    def flip(self, path: Path, bit: int) -> None:
        content = bytearray(path.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        self.write(path, bytes(content))

    def restore(self) -> None:
        for path, content in self.changed.items():
            path.write_bytes(content)
            os.utime(path, ns=(0, random.getrandbits(50)))
        self.changed.clear()

    def run(self, job: str) -> int:
        """Runs a stage in this process, and returns its exit code."""
        arguments = argparse.Namespace(
            config=str(self.config),
            overrides=[f"lake={self.root}"],
            run_date=RUN_DATE,
            future=True,
            profile=None,
            wait=0.0,
        )
        stage = import_module(f"jobs.stages.{job}").run
        root = logging.getLogger()
        handlers = root.handlers[:]
        try:
            return run_in_application(job, arguments, stage, lambda _: None, OwnSession())
        finally:
            root.handlers = handlers


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Copy:
    root = tmp_path / "lake"
    shutil.copytree(world.root, root)
    return Copy(root, world.config)


# The tables, the stage that reads a file of the table, and the stages that heal it.
READERS = {
    "recommendations": ("check_lists", ["score_daily"]),
    "users": ("score_daily", ["build_features", "build_candidates"]),
    "items": ("build_candidates", ["build_features"]),
    "candidates": ("score_daily", ["build_candidates"]),
    "candidate_items": ("score_daily", ["build_candidates"]),
}


@pytest.mark.parametrize("table", READERS)
def test_a_flipped_bit_is_named_and_healed(
    copy: Copy, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, healers = READERS[table]
    (path, *_) = copy.files(f"_data/{table}/**/*.parquet")
    copy.flip(path, 8 * (path.stat().st_size // 2))
    if table == "items":  # build_candidates does not read them if its tables are up to date
        for name in ("candidate_items", "candidates"):
            for manifest in copy.files(f"{name}/**/{MANIFEST_NAME}"):
                manifest.unlink()
    assert fsck.main(["--lake", str(copy.root)]) == 3
    assert f"{path} is damaged" in capsys.readouterr().out
    with pytest.raises(nightrank.DataError, match="is damaged"):
        nightrank.open(str(copy.root)).table(table).pandas()
    assert copy.run(reader) == 3
    text = capsys.readouterr().err
    assert f"{path} is damaged" in text
    assert f"run {healers[0]} for {RUN_DATE} again" in text
    assert "Traceback" not in text
    for job in healers:
        assert copy.run(job) == 0
    assert copy.run(reader) == 0
    assert fsck.main(["--lake", str(copy.root)]) == 0


@pytest.mark.parametrize("table", ["features", "value_counts", "workflow"])
def test_a_flipped_bit_stops_the_stages_that_read_it(copy: Copy, table: str) -> None:
    for path in copy.files(f"_data/{table}/**/*.parquet"):
        copy.flip(path, 8 * (path.stat().st_size // 2))
    if table == "features":
        shutil.rmtree(copy.root / "models")
        shutil.rmtree(copy.root / "checkpoints", ignore_errors=True)
        assert copy.run("train_model") == 3
    elif table == "value_counts":
        shutil.rmtree(copy.root / "workflow")
        assert copy.run("build_features") == 3
    else:
        shutil.rmtree(copy.root / "features")
        assert copy.run("build_features") == 3
    assert fsck.main(["--lake", str(copy.root), "--repair"]) == 3
    if table != "features":
        assert copy.run("build_features") == 0


def test_a_flipped_bit_of_a_model_is_found(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    (path, *_) = copy.files("models/**/*.safetensors")
    copy.flip(path, 8 * (path.stat().st_size - 50))
    assert fsck.main(["--lake", str(copy.root)]) == 3
    assert "run train_model again" in capsys.readouterr().out
    assert copy.run("score_daily") in (0, 3)  # the lists are up to date, or another model file is damaged


def test_two_hundred_random_flips_are_found_or_harmless(copy: Copy) -> None:
    """Each flipped bit of a file that a manifest or a model.json names is found by fsck."""
    choose = random.Random(7)
    published = _published(copy)
    files = [*published, *copy.files("**/*.safetensors"), *copy.files("**/*.json")]
    sound = {path: path.read_bytes() for path in files}
    flipped = choose.choices([path for path in files if sound[path]], k=200)
    for start in range(0, 200, 20):
        some = {path: choose.randrange(8 * len(sound[path])) for path in flipped[start : start + 20]}
        for path, bit in some.items():
            copy.flip(path, bit)
        findings = check_descriptions(copy.lake, check_lake(copy.lake))
        named = {damage.path for damage in findings.damages}
        for path in some:
            if path in published and published[path] not in some:
                assert str(path) in named, path
            elif path.suffix == ".safetensors" and path.parent / "model.json" not in some:
                assert any(name.startswith(str(path.parent)) for name in named), path
        copy.restore()


def _published(copy: Copy) -> dict[Path, Path]:
    """Maps each file that a manifest names with a digest to the manifest."""
    files = {}
    for path in copy.files(f"**/{MANIFEST_NAME}"):
        partition = partition_of_manifest(copy.lake, str(path.relative_to(copy.root)))
        for entry in load_manifest(partition).files:
            if entry.digest:
                files[Path(partition.file(entry.path))] = path
    assert len(files) > 20
    return files


# Damaged JSON files and headers


def _read_spec(path: str) -> object:
    return feature_spec.loads(file_io.read_text(path), path)


def _readers(lake: LakePaths, root: Path) -> Iterator[tuple[Path, Callable[[], object]]]:
    """Yields each file that is parsed, with a function that parses it."""
    for path in sorted(root.rglob(MANIFEST_NAME)):
        if "_data" not in path.parts:
            partition = partition_of_manifest(lake, str(path.relative_to(root)))
            yield path, partial(load_manifest, partition)
    yield root / f"datasets/dt={RUN_DATE}/{MANIFEST_NAME}", lambda: dataset.read_dataset(lake, RUN_DATE)
    for path in sorted(root.glob("workflow/*/workflow.json")):
        version = path.parent.name
        yield path, partial(load_local, lake, version)
        yield path, partial(find_id_counts, lake, version)
    for path in sorted(root.glob("workflow/*/feature_spec.json")):
        yield path, partial(_read_spec, str(path))
    for path in sorted(root.glob("models/*/*/model.json")):
        yield path, partial(read_model_info, str(path.parent))
    name = next(root.glob("models/*/promotions")).parent.name
    promotion = root / f"models/{name}/promotions/dt={RUN_DATE}.json"
    yield promotion, lambda: champion_history.champion_state_as_of(lake, name, RUN_DATE)
    for path in sorted(root.glob("models/*/refits/dt=*.json")):
        yield path, lambda: refits.read_refits(lake, name, RUN_DATE)
    for path in sorted(root.glob(f"models/*/runs/dt={RUN_DATE}.json")):
        yield path, lambda: versions.challenger_of(lake, name, RUN_DATE)
    for path in sorted(root.glob("runs/dt=*/*.json"))[:3]:
        yield path, partial(read_run, str(path))
    overrides = root / f"models/{name}/interventions/dt={RUN_DATE}.json"
    yield overrides, lambda: champion_history.read_overrides(lake, name, RUN_DATE)
    users = root / "erasures/users.json"
    yield users, lambda: erased_users.read_erased(lake)
    erasure = Path(record_path(lake, Record(RUN_DATE, ("a",))))
    yield erasure, lambda: read_erasure(str(erasure))


def _add_rare_files(lake: LakePaths) -> None:
    """Writes the files that a lake has only after a manual change or an erasure."""
    root = Path(lake.root)
    name = next(root.glob("models/*/promotions")).parent.name
    override = champion_history.Override(
        RUN_DATE, "rollback", "v1", "someone", "a reason", "2026-01-04T00:00:00Z", ("v0",)
    )
    champion_history.write_overrides(lake, name, RUN_DATE, [override])
    known = erased_users.list_or_new(lake)
    erased_users.add_erased(lake, known, ["u1", "u2"], RUN_DATE)
    write_record(lake, Record(RUN_DATE, ("a",)))


def _paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all keys and items of a JSON value."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [
        *([path] if path else []),
        *(found for key, child in children for found in _paths_in(child, (*path, key))),
    ]


_OTHERS: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1.5,
    "",
    "../../../etc/passwd",
    "/etc/passwd",
    [],
    {},
    [[]],
    {"a": {}},
)


@st.composite
def _damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes that a damaged file may have: random, cut, not UTF-8, deep, without a key, or with another value."""
    kind = draw(st.sampled_from(["random", "cut", "byte", "deep", "removed", "replaced", "replaced"]))
    if kind == "random":
        return draw(st.binary(max_size=200))
    if kind == "cut":
        return good[: draw(st.integers(0, len(good)))]
    if kind == "byte":
        at = draw(st.integers(0, len(good) - 1))
        return good[:at] + draw(st.binary(min_size=1, max_size=1)) + good[at + 1 :]
    if kind == "deep":
        open_, close = draw(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]))
        return open_ * 100_000 + b"1" + close * 100_000
    values = json.loads(good)
    *parents, last = draw(st.sampled_from(_paths_in(values)))
    target = values
    for key in parents:
        target = target[key]
    if kind == "removed":
        del target[last]
    else:
        target[last] = draw(st.sampled_from(_OTHERS))
    return json.dumps(values).encode()


def test_damaged_json_files_are_errors_with_a_file_and_a_remedy(copy: Copy) -> None:
    _add_rare_files(copy.lake)
    readers = list(_readers(copy.lake, copy.root))
    good = {path: path.read_bytes() for path, _ in readers}
    kinds = {path.name if path.name != MANIFEST_NAME else path.parts[-3] for path in good}
    assert len(kinds) >= 15
    for _, read in readers:
        read()

    @given(st.data())
    @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def fuzz(data: st.DataObject) -> None:
        path, read = data.draw(st.sampled_from(readers))
        copy.write(path, data.draw(_damaged(good[path])))
        try:
            error = _error_of(read)
        finally:
            copy.restore()
        if error is not None:
            assert error.exit_code in (2, 3)
            assert str(copy.root) in error.problem
            assert error.remedy

    fuzz()


def _error_of(read: Callable[[], object]) -> NightrankError | None:
    try:
        read()
    except NightrankError as error:
        return error
    return None


def _header(entry: dict[str, Any]) -> bytes:
    text = json.dumps({"w": entry}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [-4, -4], "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": [16], "data_offsets": [-60, 4]},
        {"dtype": "F32", "shape": [16], "data_offsets": [8, 72]},
        {"dtype": "F32", "shape": [15], "data_offsets": [0, 64]},
        {"dtype": "F31", "shape": [16], "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": "16", "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [16]},
        [],
    ],
)
def test_a_damaged_header_of_tensors_is_an_error(tmp_path: Path, entry: Any) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(_header({"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}))
    with TensorFile(str(path)) as file:
        assert file.read("w").tolist() == [0.0] * 16
    path.write_bytes(_header(entry))
    with pytest.raises(nightrank.DataError, match="is not a safetensors file"), TensorFile(str(path)) as file:
        file.read("w")


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_no_tensor_file(content: bytes) -> None:
    path = f"/tmp/nightrank-tensors-{os.getpid()}"
    Path(path).write_bytes(content)
    with TensorFile(path) as file:
        error = _error_of(lambda: file.header)
    assert error is None or path in error.problem
    os.unlink(path)


# Show and report


@pytest.mark.parametrize(
    "name, content",
    [
        (f"recommendations/dt={RUN_DATE}/{MANIFEST_NAME}", b"\xff\xfe"),
        (f"datasets/dt={RUN_DATE}/{MANIFEST_NAME}", b"[" * 100_000),
    ],
)
def test_show_and_report_say_which_file_is_damaged(
    copy: Copy, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    user = nightrank.open(str(copy.root)).recommendations().pandas()["user_id"][0]
    words = ["--config", str(copy.config), "--run-date", RUN_DATE, "--set", f"lake={copy.root}"]
    assert show.main([*words, "--user", user]) == 0
    copy.write(copy.root / name, content)
    capsys.readouterr()
    assert show.main([*words, "--user", user]) == 3
    errors = capsys.readouterr().err
    assert copy.run("report") == 3
    errors += capsys.readouterr().err
    assert str(copy.root / name) in errors
    assert "Traceback" not in errors


def test_a_damaged_vocabulary_stops_show(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    user = nightrank.open(str(copy.root)).recommendations().pandas()["user_id"][0]
    words = ["--config", str(copy.config), "--run-date", RUN_DATE, "--set", f"lake={copy.root}"]
    for path in copy.files("_data/workflow/*/vocabulary/*/*.parquet"):
        copy.flip(path, 800)
    assert show.main([*words, "--user", user]) == 3
    assert "/vocabulary/" in capsys.readouterr().err


def test_a_damaged_promotion_stops_scoring(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = copy.files("models/*/promotions/*.json")
    copy.write(path, b"{}")
    assert copy.run("score_daily") == 3
    assert f"{path} is not a valid promotion: it lacks the key 'promoted'" in capsys.readouterr().err


def test_a_manifest_must_not_name_files_outside_the_lake(copy: Copy, tmp_path: Path) -> None:
    (path, *_) = copy.files(f"recommendations/**/{MANIFEST_NAME}")
    secret = copy.files("_data/recommendations/**/*.parquet")[0]
    shutil.copy(secret, tmp_path / "secret.parquet")
    for name in ("../../../secret.parquet", str(tmp_path / "secret.parquet"), "s3a://bucket/secret.parquet"):
        values = json.loads(path.read_text())
        values["files"][0]["path"] = name
        copy.write(path, json.dumps(values).encode())
        with pytest.raises(nightrank.DataError, match="is not below the root of the lake"):
            nightrank.open(str(copy.root)).recommendations()
        copy.restore()
    (model, *_) = copy.files("models/*/*/model.json")
    values = json.loads(model.read_text())
    values["weights"][0] = "../../../../secret.parquet"
    copy.write(model, json.dumps(values).encode())
    with pytest.raises(nightrank.DataError, match="is not in the folder of the model"):
        read_model_info(str(model.parent))
