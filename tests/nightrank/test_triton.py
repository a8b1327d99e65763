"""Model repositories in a real Triton Inference Server: raw rows, versions, errors, and what an export leaves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import nightrank
from benchmarks.triton_server import Unavailable, environment, triton_server
from nightrank import ConfigError, DataError, InfrastructureError, triton_models
from nightrank.triton_models import EncodeRows
from scoring.serving import model_configs, repository
from scoring.serving.model_configs import ServedInputs
from tests.etl.lakes.servers import missing
from tests.nightrank.triton_requests import ask, body_of, probabilities

pytestmark = pytest.mark.processes

TYPES = {"user": "string", "age": "int", "price": "float", "tags": "strings", "sizes": "ints"}
GROUPS: list[dict[str, Any]] = [
    {"columns": ["user"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
    {"columns": ["age", "price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
    {"columns": ["tags", "sizes"], "kind": "multi_hot", "ops": ["categorify"]},
]
MODEL: dict[str, Any] = {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16]}
TRAIN: dict[str, Any] = {"global_batch_size": 256, "num_shards": 4, "epochs": 3, "device": "cpu"}


def make_rows(count: int, seed: int) -> pd.DataFrame:
    """Clicks that depend on all columns. Some values are missing."""
    rng = np.random.default_rng(seed)
    user, age = rng.integers(0, 12, count), rng.integers(18, 80, count).astype(float)
    price = rng.gamma(2.0, 5.0, count)
    tags = [[f"t{tag}" for tag in rng.integers(0, 6, size)] or None for size in rng.integers(0, 4, count)]
    sizes = [[int(size) for size in rng.integers(0, 5, number)] for number in rng.integers(0, 3, count)]
    logit = (user - 6) / 2 + (age - 50) / 20 + np.array([bool(tag) for tag in tags])
    label = rng.random(count) < 1 / (1 + np.exp(-logit))
    age[rng.random(count) < 0.1] = np.nan
    price[rng.random(count) < 0.1] = np.nan
    texts = [f"ü{number}" for number in user]
    columns = {"label": label.astype(int), "user": texts, "age": age, "price": price}
    return pd.DataFrame({**columns, "tags": tags, "sizes": sizes})


@pytest.fixture(scope="module")
def models() -> list[nightrank.Model]:
    """Two models of the same features, trained on other rows."""
    both = []
    for seed in (0, 1):
        rows: Any = make_rows(1200, seed)
        workflow = nightrank.Workflow(GROUPS, types=TYPES).fit(rows)  # type: ignore[arg-type]
        both.append(nightrank.train(workflow, rows, model=MODEL, train=TRAIN))
    return both


@pytest.fixture(scope="module")
def first(models: list[nightrank.Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the first model, which tests copy."""
    folder = tmp_path_factory.mktemp("first") / "repository"
    added = models[0].export_triton(folder, "python")
    assert (added["version"], added["model_version"]) == (1, models[0].version)
    return folder


@pytest.fixture
def copied(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "repository"))


@pytest.fixture(scope="module")
def served(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a server, and its repository."""
    folder = Path(shutil.copytree(first, tmp_path_factory.mktemp("served") / "repository"))
    try:
        with triton_server(folder) as url:
            yield url, folder
    except Unavailable as error:
        missing(str(error))


def request_of(rows: pd.DataFrame) -> dict[str, Any]:
    """Raw rows as a program without this project sends them: NaN, empty texts and lists in JSON."""
    data = {
        name: ("FP64", rows[name].tolist())
        if kind in ("int", "float")
        else ("BYTES", ["" if value is None else value for value in rows[name]])
        if kind == "string"
        else ("BYTES", ["" if value is None else json.dumps(value) for value in rows[name]])
        for name, kind in TYPES.items()
    }
    return body_of(data)


def odd_rows() -> pd.DataFrame:
    """Nulls, values that no training row had, and lists that are empty or too long."""
    rows: Any = make_rows(40, 9)
    rows.loc[0, ["user", "age", "price"]] = [None, np.nan, np.nan]
    rows.loc[1, "user"] = "nobody"
    rows.at[2, "tags"] = ["?", "t1"] * 40
    rows.at[3, "sizes"] = [10**15, -1]
    rows.at[4, "tags"] = []
    frame: pd.DataFrame = rows
    return frame


@pytest.mark.parametrize("count", [1, 40])
def test_the_ensemble_scores_raw_rows_as_the_model_does(
    served: tuple[str, Path], models: list[nightrank.Model], count: int
) -> None:
    rows: Any = odd_rows()[:count]
    answer = ask(served[0], "nightrank/versions/1", request_of(rows))
    np.testing.assert_allclose(probabilities(answer), models[0].score(rows), atol=1e-5)


def test_the_ranker_scores_inputs_of_the_model(
    served: tuple[str, Path], models: list[nightrank.Model]
) -> None:
    rows: Any = odd_rows()
    inputs = models[0].inputs(rows)
    body = [
        {"name": name, "datatype": kind, "shape": inputs[name].shape, "data": inputs[name].ravel().tolist()}
        for name, kind in (("dense", "FP32"), ("categorical", "INT64"))
    ]
    answer = ask(served[0], "ranker/versions/1", {"inputs": body})
    np.testing.assert_allclose(probabilities(answer), models[0].score(rows), atol=1e-5)


@pytest.mark.parametrize(
    "column, value, message",
    [
        ("age", 17.5, "column age, row 2: 17.5 is not a whole number"),
        ("price", 1e300, "column price, row 2: 1e+300 is outside the range of float32"),
        ("tags", "t1", "column tags, row 2: 't1' is not a list of strings in JSON"),
        ("sizes", "[1, 2.5]", "column sizes, row 2: '[1, 2.5]' is not a list of integers in JSON"),
        ("sizes", f"[{2**63}]", "is not a list of integers in JSON"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_column(
    served: tuple[str, Path], column: str, value: object, message: str
) -> None:
    body = request_of(make_rows(5, 3))
    (entry,) = [entry for entry in body["inputs"] if entry["name"] == column]
    entry["data"][2] = value
    answer = ask(served[0], "nightrank", body)
    assert answer["status"] == 400
    assert message in answer["error"]


class TritonUtilities:
    """What Triton gives to a model of the Python backend. A request is a mapping of inputs."""

    class TritonError:
        INVALID_ARG, UNAVAILABLE = "invalid", "unavailable"

        def __init__(self, message: str, code: str) -> None:
            self.message, self.code = message, code

    class Tensor(NamedTuple):
        name: str
        values: np.ndarray

    @staticmethod
    def InferenceResponse(tensors: list[Any], error: Any = None) -> Any:
        return error or {tensor.name: tensor.values for tensor in tensors}

    @staticmethod
    def get_input_tensor_by_name(request: dict[str, np.ndarray], name: str) -> Any:
        return SimpleNamespace(as_numpy=lambda: request[name])


@pytest.mark.parametrize("text", [b'["\\ud800"]', b"[" * 100_000, b"[NaN]", b"9" * 5_000])
def test_json_that_is_no_list_of_texts_is_named(text: bytes) -> None:
    """Any other error would fail all requests of the batch."""
    with pytest.raises(DataError, match=r"column tags, row 0: .* is not a list of strings in JSON"):
        triton_models._column("tags", np.array([text], object), "strings")


def test_a_wrong_request_does_not_fail_those_of_the_same_batch(
    first: Path, models: list[nightrank.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", TritonUtilities)
    encoder = EncodeRows()
    config = json.dumps({"input": [{"name": name} for name in TYPES]})
    folder = {"model_repository": str(first / "workflow"), "model_version": "1"}
    encoder.initialize({**folder, "model_config": config})
    parts: list[Any] = [odd_rows()[:3], odd_rows()[3:4], odd_rows()[4:]]
    requests = []
    for rows in parts:
        inputs = {entry["name"]: entry for entry in request_of(rows)["inputs"]}
        requests.append(
            {
                name: np.array(
                    [text.encode() for text in entry["data"]]
                    if entry["datatype"] == "BYTES"
                    else entry["data"],
                    dtype=object if entry["datatype"] == "BYTES" else np.float64,
                )[:, None]
                for name, entry in inputs.items()
            }
        )
    for wrong in (None, 1):
        if wrong is not None:
            requests[wrong]["age"] = np.array([[17.5]])
        for place, response in enumerate(encoder.execute(requests)):
            if place == wrong:
                assert response.message.startswith("column age, row 0: 17.5 is not a whole number")
                assert response.code == "invalid"
            else:
                expected = models[0].inputs(parts[place])
                assert set(response) == set(expected)
                for name, values in expected.items():
                    np.testing.assert_array_equal(response[name], values)


def test_a_missing_column_is_an_error_that_names_it(served: tuple[str, Path]) -> None:
    body = request_of(make_rows(1, 3))
    answer = ask(served[0], "nightrank", {"inputs": body["inputs"][1:]})
    assert answer["status"] == 400
    assert "missing required input(s) ['user']" in answer["error"]


def test_a_server_changes_to_a_newer_model_and_back(
    served: tuple[str, Path], models: list[nightrank.Model]
) -> None:
    """While it is asked. No response mixes the workflow of one model with the ranker of the other."""
    url, folder = served
    rows: Any = odd_rows()
    expected = [model.score(rows).to_numpy() for model in models]
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    for model, version in ((models[1], 2), (models[0], 1)):
        assert model.export_triton(folder, "python")["version"] == version
        end = time.monotonic() + 30
        while True:
            answer = ask(url, "nightrank", request_of(rows))
            served_version = int(answer["model_version"])
            np.testing.assert_allclose(probabilities(answer), expected[served_version - 1], atol=1e-5)
            if served_version == version:
                break
            assert time.monotonic() < end
            time.sleep(0.05)
    assert sorted(path.name for path in (folder / "ranker").iterdir()) == ["1", "2", "config.pbtxt"]

    assert models[1].export_triton(folder, "python", variant="treatment")["version"] == 2
    while "error" in ask(url, "nightrank_treatment", request_of(rows)):
        assert time.monotonic() < end + 30
        time.sleep(0.05)
    for ensemble, scores in zip(("nightrank", "nightrank_treatment"), expected, strict=True):
        answer = ask(url, ensemble, request_of(rows))
        np.testing.assert_allclose(probabilities(answer), scores, atol=1e-5)


PARSE = """
import json, sys
from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
parsed = [json_format.MessageToDict(text_format.Parse(text, ModelConfig())) for text in json.load(sys.stdin)]
print(json.dumps(parsed))
"""


def test_configurations_are_messages_of_triton() -> None:
    """Parsed by Triton's own definition of ModelConfig, which refuses unknown fields and values."""
    raw = {'a"\\\n': "string", "dense": "int", "_dense": "ints"}
    inputs = {
        backend: ServedInputs(backend, raw, ("x", "y"), (("u", 1), ("tags", 3)))
        for backend in ("onnxruntime", "tensorrt", "python")
    }
    without_ids = ServedInputs("onnxruntime", {"x": "float"}, ("x",), (), {"x": "float"})
    texts = [model_configs.ranker_config(one) for one in inputs.values()]
    texts += [
        model_configs.workflow_config(inputs["python"]),
        model_configs.ensemble_config(inputs["python"], 7),
    ]
    texts += [model_configs.ensemble_config(without_ids, 1), model_configs.lookup_config(without_ids)]
    texts += [model_configs.online_ensemble_config(without_ids, 3)]
    python = environment() / "bin/python"
    done = subprocess.run(
        [python, "-c", PARSE], input=json.dumps(texts), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    onnx, tensorrt, in_python, workflow, ensemble, small, lookup, online = json.loads(done.stdout)
    assert (onnx["backend"], onnx["defaultModelFilename"]) == ("onnxruntime", "ranker.onnx")
    assert onnx["instanceGroup"] == [{"count": 1}]  # KIND_AUTO is the default
    accelerators = tensorrt["optimization"]["executionAccelerators"]["gpuExecutionAccelerator"]
    assert (tensorrt["backend"], accelerators) == ("onnxruntime", [{"name": "tensorrt"}])
    assert tensorrt["instanceGroup"] == [{"count": 1, "kind": "KIND_GPU"}]
    assert (in_python["backend"], in_python["instanceGroup"][0]["kind"]) == ("python", "KIND_CPU")
    for config in (onnx, tensorrt, in_python, workflow):
        assert (config["maxBatchSize"], config["dynamicBatching"], config["versionPolicy"]) == (
            4096,
            {},
            {"all": {}},
        )
        assert {entry["name"] for entry in config["input"]} == set(config["modelWarmup"][0]["inputs"])
    widths = [(entry["name"], entry["dataType"], entry["dims"]) for entry in onnx["input"]]
    assert widths == [("dense", "TYPE_FP32", ["2"]), ("categorical", "TYPE_INT64", ["4"])]
    assert onnx["output"] == [{"name": "probability", "dataType": "TYPE_FP32", "dims": ["1"], "reshape": {}}]
    assert [(entry["name"], entry["dataType"]) for entry in workflow["input"]] == [
        ('a"\\\n', "TYPE_STRING"),
        ("dense", "TYPE_FP64"),
        ("_dense", "TYPE_STRING"),
    ]
    first, second = ensemble["ensembleScheduling"]["step"]
    assert [step["modelVersion"] for step in (first, second)] == ["7", "7"]
    assert first["outputMap"] == second["inputMap"] == {"dense": "__dense", "categorical": "categorical"}
    assert ensemble["versionPolicy"] == {"specific": {"versions": ["7"]}}
    assert small["ensembleScheduling"]["step"][1]["inputMap"] == {"dense": "dense"}
    assert "modelWarmup" not in lookup
    for config in (lookup, online):
        assert [entry["name"] for entry in config["input"]] == ["user_key", "item_key", "x"]
    assert [step["modelName"] for step in online["ensembleScheduling"]["step"]] == ["lookup", "ranker"]
    assert online["versionPolicy"] == {"specific": {"versions": ["3"]}}


def names_in(folder: Path) -> list[str]:
    """The versions of the three models, such as `ranker/1`."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*") if path.is_dir())


def test_the_version_that_served_before_is_kept(
    copied: Path, models: list[nightrank.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exports are faked after the first: their ids are other versions of the same program."""
    (copied.parent / "beside").write_text("")
    for version in (2, 3):
        monkeypatch.setattr(repository, "export", faked_export(copied, f"m{version}"))
        assert models[1].export_triton(copied, "python")["version"] == version
    assert names_in(copied) == sorted(
        f"{name}/{n}" for name in ("nightrank", "ranker", "workflow") for n in (2, 3)
    )
    assert "versions: [ 3 ]" in (copied / "nightrank/config.pbtxt").read_text()
    assert sorted(path.name for path in copied.parent.iterdir()) == ["beside", "repository"]


def test_the_version_of_a_treatment_is_kept_until_the_experiment_ends(
    copied: Path, models: list[nightrank.Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="has no model for the control"):
        models[0].export_triton(tmp_path / "new", "python", variant="treatment")

    def added(name: str, variant: Any) -> int:
        monkeypatch.setattr(repository, "export", faked_export(copied, name))
        version: int = models[1].export_triton(copied, "python", variant=variant)["version"]
        return version

    def used(ensemble: str) -> str:
        text = (copied / ensemble / "config.pbtxt").read_text()
        assert f'name: "{ensemble}"' in text
        return text.split("versions: [ ")[1].split(" ")[0]

    assert added("m2", "treatment") == 2
    for version in (3, 4):
        assert added(f"m{version}", "control") == version
        assert (used("nightrank"), used("nightrank_treatment")) == (str(version), "2")
    assert {name.split("/")[1] for name in names_in(copied) if name.startswith("ranker/")} == {"2", "3", "4"}
    repository.withdraw_treatment(str(copied))
    repository.withdraw_treatment(str(copied))
    assert added("m5", "control") == 5
    assert names_in(copied) == sorted(
        f"{name}/{n}" for name in ("nightrank", "ranker", "workflow") for n in (4, 5)
    )


def faked_export(source: Path, model_version: str) -> Any:
    def export(_: object, folder: str) -> dict[str, Any]:
        Path(folder).mkdir()
        newest = sorted((source / "ranker").glob("*/ranker.onnx"))[-1]
        shutil.copy(newest, folder)
        (description,) = sorted((source / "workflow").glob("*/export.json"))[-1:]
        shutil.copy(description, folder)
        return {**json.loads(description.read_text()), "model_version": model_version}

    return export


@pytest.mark.parametrize("place", ["workflow", "nightrank"])
def test_an_export_that_fails_leaves_what_was_served(
    copied: Path, models: list[nightrank.Model], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The disk is full when a folder is moved to its place. The next export succeeds."""
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if target == copied / place / "2":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(repository, "export", faked_export(copied, "m2"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with pytest.raises(InfrastructureError, match=r"cannot be written: .*No space left"):
            models[1].export_triton(copied, "python")
    assert {path: path.read_bytes() for path in before} == before
    assert [path.name for path in copied.parent.iterdir()] == ["repository"]
    version = models[1].export_triton(copied, "python")["version"]
    assert names_in(copied) == sorted(
        f"{name}/{n}" for name in ("nightrank", "ranker", "workflow") for n in (1, version)
    )


def test_other_inputs_and_backends_are_refused(
    copied: Path, models: list[nightrank.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: Any = make_rows(300, 2)
    before = names_in(copied)
    workflow = nightrank.Workflow(GROUPS[:2], types={"age": "int"}).fit(rows)
    other = nightrank.train(workflow, rows, model={"architecture": "logistic_regression"}, train=TRAIN)
    monkeypatch.setattr(repository, "export", faked_export(copied, other.version))
    with pytest.raises(ConfigError, match=r"differ .* in raw columns .tags strings, sizes ints, new: "):
        other.export_triton(copied, "python")
    with pytest.raises(ConfigError, match=r"differ .* in backend \(python, new: onnxruntime\)"):
        models[0].export_triton(copied)
    assert names_in(copied) == before


def test_models_of_others_are_not_touched(tmp_path: Path, models: list[nightrank.Model]) -> None:
    (tmp_path / "ranker/1").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"models named \['ranker'\], which this project did not export"):
        models[0].export_triton(tmp_path)
    assert names_in(tmp_path) == ["ranker/1"]
    with pytest.raises(ConfigError, match="there is no backend 'tensorflow'"):
        models[0].export_triton(tmp_path / "new", "tensorflow")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'s3://bucket/models' is not a local folder"):
        models[0].export_triton("s3://bucket/models")


@pytest.mark.parametrize("damaged", [b"\xff\xfe", None])
def test_a_damaged_configuration_of_the_ensemble_is_written_again(
    copied: Path, models: list[nightrank.Model], damaged: bytes | None
) -> None:
    path = copied / "nightrank/config.pbtxt"
    text = path.read_text()
    path.unlink()
    if damaged:
        path.write_bytes(damaged)
    models[0].export_triton(copied, "python")
    assert path.read_text() == text


def test_a_damaged_version_is_named(copied: Path, models: list[nightrank.Model]) -> None:
    for text in (
        "{",
        "{}",
        json.dumps({"version": 1, "model_version": models[0].version, "workflow_version": "", "inputs": {}}),
    ):
        (copied / "nightrank/1/served.json").write_text(text)
        with pytest.raises(DataError, match="is damaged"):
            models[0].export_triton(copied, "python")


def test_a_model_without_scopes_has_no_look_up(tmp_path: Path, models: list[nightrank.Model]) -> None:
    """A workflow that was fitted on a frame does not know which features are those of users."""
    with pytest.raises(ConfigError, match=r"features of \(user, item\) pairs cannot be looked up: \['user',"):
        models[0].export_triton(tmp_path / "repository", online=True)
    assert list((tmp_path / "repository").iterdir()) == []


def test_a_column_named_as_the_output_is_refused(tmp_path: Path) -> None:
    rows: Any = make_rows(300, 2).rename(columns={"price": "probability"})
    groups = [{"columns": ["probability"], "kind": "dense", "ops": ["fill_median"]}]
    workflow = nightrank.Workflow(groups).fit(rows)
    model = nightrank.train(workflow, rows, model={"architecture": "logistic_regression"}, train=TRAIN)
    with pytest.raises(ConfigError, match=r"raw columns \['probability'\] have the same names as"):
        model.export_triton(tmp_path / "repository")
    assert list((tmp_path / "repository").iterdir()) == []
