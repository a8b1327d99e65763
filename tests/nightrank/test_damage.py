"""Damaged files of a lake: each is detected by the readers of the file, by the package and by fsck."""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nightrank
from conf.errors import NightrankError
from etl.erasure.carry_out import Record, record_path, write_record
from etl.erasure.carry_out import _read as read_erasure
from etl.raw import erased_users
from etl.workflow.fitted_workflow import load_local
from jobs import fsck, show
from jobs.fsck import check_descriptions
from jobs.runner import OwnSession, run_in_application
from reporting.monitoring.run_record import _read as read_run
from scoring.model.model_info import read_model_info
from storage import dataset, feature_spec, file_io
from storage.fsck import check_lake
from storage.id_counts import find_id_counts
from storage.manifest import MANIFEST_NAME, load_manifest
from storage.migration import partition_of_manifest
from storage.paths import LakePaths
from tests.nightrank.conftest import RUN_DATE, World
from training.checkpoints.model import load_model, open_trained
from training.checkpoints.tensor_file import TensorFile
from training.registry import blends, champion_history, refits, served_experiments, versions
from training.registry.model_json import damage_of_model, weights_digest

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

    def run(self, job: str, run_date: str = RUN_DATE, *overrides: str) -> int:
        """Runs a stage in this process, and returns its exit code."""
        arguments = argparse.Namespace(
            config=str(self.config),
            overrides=[f"lake={self.root}", *overrides],
            run_date=run_date,
            future=True,
            profile=None,
            wait=0.0,
        )
        stage = import_module(f"jobs.{job}").run
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
    named = f"run {healers[0]} for {RUN_DATE} again"
    assert (named if healers[0] != "build_features" else "the command that it prints for this file") in text
    assert "Traceback" not in text
    for job in healers:
        assert copy.run(job) == 0
    assert copy.run(reader) == 0
    assert fsck.main(["--lake", str(copy.root)]) == 0


@pytest.mark.parametrize(
    "pattern",
    [
        "features/*/dt=2026-01-01",
        "value_counts/dt=2026-01-02",
        "workflow/*/vocabulary",
        f"users/*/dt={RUN_DATE}",
    ],
)
def test_the_command_that_fsck_prints_heals(
    copy: Copy, pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of train days are written by the run of a later date, not by a run of their own day."""
    (path, *_) = copy.files(f"_data/{pattern}/**/*.parquet")
    copy.flip(path, 8 * (path.stat().st_size // 2))
    assert fsck.main(["--lake", str(copy.root), "--repair"]) == 3
    printed = capsys.readouterr().out
    (command,) = re.findall(r"what to do: run `(.*)` again, with the configuration of the lake", printed)
    job, _, run_date, _, override = command.split()
    assert (job, run_date, override) == ("build_features", RUN_DATE, "workflow.mode=fit")
    assert copy.run(job, run_date, override) == 0
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


def test_a_flipped_bit_of_a_model_is_trained_again(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    """The flip keeps the length, so only the SHA-256 shows it."""
    (promotion,) = copy.files("models/*/promotions/*.json")
    name = promotion.parts[-3]
    serving = refits.serving_model_of(copy.lake, name, RUN_DATE, use_refit=True)
    assert serving is not None
    folder, job = Path(serving.folder(copy.lake, name)), "refit_model" if serving.refit else "train_model"
    good = read_model_info(str(folder)).description
    path = folder / good["weights"][0]
    copy.flip(path, 8 * (path.stat().st_size - 50))
    for lists in copy.files(f"recommendations/**/{MANIFEST_NAME}"):
        lists.unlink()
    assert copy.run("score_daily") == 3
    errors = capsys.readouterr().err
    assert f"{path} was changed after it was written (its SHA-256 differs)" in errors
    assert f"run {job} for {RUN_DATE} again" in errors
    assert copy.run(job) == 0
    healed = read_model_info(str(folder)).description
    assert weights_digest(healed) == weights_digest(good)
    assert damage_of_model(str(folder)) is None
    assert copy.run("score_daily") == 0
    assert fsck.main(["--lake", str(copy.root)]) == 0


def test_a_champion_has_the_weights_that_the_gate_measured(
    copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    (promotion,) = copy.files("models/*/promotions/*.json")
    decision = file_io.read_json(str(promotion))
    version = decision["champion_after"]
    assert re.fullmatch("[0-9a-f]{64}", decision["weights"][version])
    for lists in copy.files(f"recommendations/**/{MANIFEST_NAME}"):
        lists.unlink()
    file_io.replace_json(str(promotion), {**decision, "weights": {version: "0" * 64}})
    for refit in copy.files("models/*/refits/*.json"):
        file_io.replace_json(str(refit), {**file_io.read_json(str(refit)), "weights": "0" * 64})
    assert copy.run("score_daily") == 3
    assert "does not have the weights that" in capsys.readouterr().err
    with pytest.raises(nightrank.DataError, match="does not have the weights that"):
        nightrank.open(str(copy.root)).champion()
    del decision["weights"]  # as an earlier release wrote it
    file_io.replace_json(str(promotion), decision)
    for refit in copy.files("models/*/refits/*.json"):
        values = file_io.read_json(str(refit))
        del values["weights"]
        file_io.replace_json(str(refit), values)
    assert copy.run("score_daily") == 0


@pytest.mark.parametrize("cut", [0, 1000])
def test_a_truncated_vocabulary_is_named_and_healed(
    copy: Copy, capsys: pytest.CaptureFixture[str], cut: int
) -> None:
    paths = copy.files("_data/workflow/*/vocabulary/*/*.parquet")
    for path in paths:
        copy.write(path, path.read_bytes()[:cut])
    assert fsck.main(["--lake", str(copy.root)]) == 3
    output = capsys.readouterr().out
    assert all(f"{path} is damaged" in output for path in paths)
    shutil.rmtree(copy.root / "features")
    code = copy.run("build_features")
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    if code:
        assert code == 3
        assert "/vocabulary/" in errors
        assert fsck.main(["--lake", str(copy.root), "--repair"]) == 3
        assert copy.run("build_features") == 0
    assert fsck.main(["--lake", str(copy.root)]) == 0


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
        yield path, partial(versions.challenger_of, lake, path.parts[-3], RUN_DATE)
    blend = root / f"models/{name}/blends/dt={RUN_DATE}.json"
    yield blend, lambda: blends.blend_of(lake, name, RUN_DATE)
    stop = root / f"models/{name}/experiment_stops/dt={RUN_DATE}.json"
    yield stop, lambda: served_experiments.read_stops(lake, name, RUN_DATE)
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
    key = blends.BlendKey("v1", "0123", None)
    weights = {"intercept": 0.25, "logit": 1.5, "weights": [0.5], "absent": [-1.0]}
    record = blends.BlendRecord(key, RUN_DATE, {"users": "ab"}, ("popular",), 10, 7, "blend", (), weights)
    blends.record_blend(lake, name, record)
    stop = served_experiments.ExperimentStop(RUN_DATE, "test", "it lost", {"difference": -0.5}, "now")
    served_experiments.record_stop(lake, name, stop)


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
    values.pop(file_io.CHECKSUM)  # a file of an earlier release, or one that somebody has edited
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
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None)
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


@pytest.mark.parametrize(
    "operator, kind, problem",
    [
        (None, nightrank.DataError, "is not a valid workflow"),
        ("nowhere", nightrank.ConfigError, "a workflow contains the operator 'nowhere' of another release"),
    ],
)
def test_a_workflow_with_an_unknown_operator_is_named(
    copy: Copy, operator: str | None, kind: type[nightrank.NightrankError], problem: str
) -> None:
    (path, *_) = copy.files("workflow/*/workflow.json")
    values = json.loads(path.read_bytes())
    values.pop(file_io.CHECKSUM)  # a file that somebody has edited
    values["chains"][0]["steps"][0]["op"] = operator
    copy.write(path, json.dumps(values).encode())
    with pytest.raises(kind) as caught:
        load_local(copy.lake, path.parent.name)
    assert str(path) in caught.value.problem
    assert problem in caught.value.problem


def test_flipped_and_cut_json_files_are_errors_or_give_equal_values(copy: Copy) -> None:
    """The checksum in a file finds a flip that gives other valid JSON, such as another digit of a number."""
    _add_rare_files(copy.lake)
    choose = random.Random(46)
    readers = list(_readers(copy.lake, copy.root))
    detected = 0
    for number in range(500):
        path, read = readers[number % len(readers)]
        good, expected = path.read_bytes(), _text_of(read())
        if number % 5 == 0:
            copy.write(path, good[: choose.randrange(len(good))])
        else:
            copy.flip(path, choose.randrange(8 * len(good)))
        results: list[str] = []
        error = _error_of(lambda read=read, results=results: results.append(_text_of(read())))
        copy.restore()
        if error is None:
            # Records of runs are left out with a warning.
            left_out = path.parts[-3] == "runs" and results == ["None"]
            assert results == [expected] or left_out, path
            detected += left_out
        else:
            detected += 1
            assert (error.exit_code, bool(error.remedy)) == (3, True)
            assert str(path) in error.problem
    assert detected > 400


def _text_of(result: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(result))


def test_keys_that_a_file_of_an_earlier_release_lacks_are_errors(copy: Copy) -> None:
    (path, *_) = copy.files("models/*/*/model.json")
    copy.write(path, b'{"version": "m1", "weights": [], "optimizer": []}')
    with pytest.raises(nightrank.DataError, match=re.escape(f"{path} is not a valid model description: it")):
        load_model(str(path.parent), torch.device("cpu"))
    with pytest.raises(nightrank.DataError, match="it lacks the key 'feature_spec'"):
        open_trained(str(path.parent))
    (manifest, *_) = copy.files(f"recommendations/**/{MANIFEST_NAME}")
    values = json.loads(manifest.read_text())
    del values[file_io.CHECKSUM], values["facts"]["k"]
    copy.write(manifest, json.dumps(values).encode())
    partition = partition_of_manifest(copy.lake, str(manifest.relative_to(copy.root)))
    with pytest.raises(nightrank.DataError, match=re.escape(f"{manifest} is not a valid manifest: it lacks")):
        load_manifest(partition).facts["k"]


@pytest.mark.parametrize("name", ["../other", "/etc", "..", "a/b", "a\0b"])
def test_versions_in_json_files_are_names_of_folders(copy: Copy, name: str) -> None:
    (promotion,) = copy.files("models/*/promotions/*.json")
    lake, of_model = copy.lake, promotion.parts[-3]
    cases: list[tuple[Path, str, Callable[[], object]]] = [
        (
            promotion,
            "champion_after",
            lambda: champion_history.champion_state_as_of(lake, of_model, RUN_DATE),
        ),
        (
            promotion.parents[1] / f"runs/dt={RUN_DATE}.json",
            "version",
            lambda: versions.challenger_of(lake, of_model, RUN_DATE),
        ),
    ]
    for model in copy.files("models/*/*/model.json"):
        cases.append((model, "workflow_version", partial(read_model_info, str(model.parent))))
    for path, key, read in cases:
        values = json.loads(path.read_text())
        file_io.replace_json(str(path), {**values, key: name})
        with pytest.raises(nightrank.DataError, match="is not the name of a file or folder") as raised:
            read()
        assert str(path) in raised.value.problem


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
        {"dtype": "F32", "shape": {}, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [2**40, 2**40, 0], "data_offsets": [0, 0]},
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


def test_tensors_of_a_file_have_no_bytes_in_common(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    whole = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
    half = {"dtype": "F32", "shape": [8], "data_offsets": [32, 64]}
    text = json.dumps({"a": whole, "b": half}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    with (
        pytest.raises(nightrank.DataError, match="'a' and 'b' have bytes in common"),
        TensorFile(str(path)) as one,
    ):
        one.read("b")


def test_rows_beyond_a_tensor_are_not_read(tmp_path: Path) -> None:
    """The bytes after a tensor belong to another one."""
    path = tmp_path / "weights.safetensors"
    entries = {
        "a": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]},
        "b": {"dtype": "F32", "shape": [4, 2], "data_offsets": [32, 64]},
    }
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    with TensorFile(str(path)) as file:
        file.read_rows("a", 1, 2, torch.empty(2, 2))
        with pytest.raises(nightrank.DataError, match="the tensor a has 4 rows, but row 4 "):
            file.read_rows("a", 0, 2, torch.empty(3, 2))
        with pytest.raises(nightrank.DataError, match="the tensor a has 4 rows, but row 5 "):
            file.read_places("a", np.array([0, 5]))


@given(st.binary(max_size=300))
@settings(max_examples=50, deadline=None)
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


def test_no_damaged_json_file_gives_a_traceback_in_show_and_report(
    copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file of each kind is cut, has a flipped bit, or lacks a key; both jobs name it or do not read it."""
    _add_rare_files(copy.lake)
    user = nightrank.open(str(copy.root)).recommendations().pandas()["user_id"][0]
    words = ["--config", str(copy.config), "--run-date", RUN_DATE, "--set", f"lake={copy.root}"]
    choose = random.Random(4)
    kinds: dict[str, Path] = {}
    for path, _ in _readers(copy.lake, copy.root):
        kinds.setdefault(path.name if path.name != MANIFEST_NAME else path.parts[-3], path)
    for number, path in enumerate(kinds.values()):
        good = path.read_bytes()
        if number % 3 == 0:
            copy.write(path, good[: choose.randrange(len(good))])
        elif number % 3 == 1:
            copy.flip(path, choose.randrange(8 * len(good)))
        else:
            values = json.loads(good)
            kept = set(choose.sample(sorted(values), len(values) // 2))
            copy.write(path, json.dumps({key: values[key] for key in kept - {file_io.CHECKSUM}}).encode())
        capsys.readouterr()
        codes = {show.main([*words, "--user", user]), copy.run("report")}
        errors = capsys.readouterr().err
        copy.restore()
        assert codes <= {0, 3}, (path, errors)
        assert "Traceback" not in errors
        assert codes == {0} or str(path) in errors, (path, errors)


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
        values = file_io.read_json(str(path))
        values["files"][0]["path"] = name
        copy.write(path, json.dumps(values).encode())
        with pytest.raises(nightrank.DataError, match="is not below the root of the lake"):
            nightrank.open(str(copy.root)).recommendations()
        copy.restore()
    (model, *_) = copy.files("models/*/*/model.json")
    values = file_io.read_json(str(model))
    values["weights"][0] = "../../../../secret.parquet"
    copy.write(model, json.dumps(values).encode())
    with pytest.raises(nightrank.DataError, match="is not in the folder of the model"):
        read_model_info(str(model.parent))
    copy.restore()
    values = json.loads(model.read_text())
    next(iter(values["rows"].values()))[0]["file"] = "../../../../secret.parquet"
    file_io.replace_json(str(model), values)
    with pytest.raises(nightrank.DataError, match="which is not a file of the model"):
        read_model_info(str(model.parent))
