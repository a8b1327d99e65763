"""Exported programs compute what the model computes: every architecture, any number of rows, lists of any length."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch._inductor import config as inductor

from conf.errors import ConfigError, InfrastructureError
from conf.types import ModelConfig
from storage.feature_spec import FeatureSpec
from tests.training.architectures import SEQUENCE_VARIANTS, VARIANTS, small_spec, variant
from tests.training.feature_rows import make_spec
from training.embeddings.scoring_tables import to_int8
from training.export import write_export as compare_programs
from training.export import write_export as module
from training.export.write_export import (
    ExportedModel,
    Format,
    instruction_set,
    load_compiled,
    write_compiled,
    write_export,
)
from training.models import build_model, known_architectures

pytestmark = pytest.mark.slow
# One variant of each architecture, and those whose forward pass has other operations.
CHOSEN = [
    "logistic_regression", "dlrm", "wide_and_deep", "dcn_v2_low_rank", "dcn_v2_parallel", "deepfm_weighted",
    "neumf", "two_tower", "sasrec_dropout", "hstu_dropout", "bert4rec", "din",
    "mult_vae",
]  # fmt: skip
# Those that are written with all formats; torch needs seconds to trace a program.
WITH_FORMATS = ["two_tower", "bert4rec"]


def randomised(config: ModelConfig, spec: FeatureSpec) -> nn.Module:
    """A model in evaluation mode with random weights, also of biases and tables."""
    model = build_model(config, spec, 3).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def spec_of(name: str) -> FeatureSpec:
    """Features that fit the variant. If it has vectors, C0 belongs to the user, and C1 is the item.

    The items of the two towers are so many that most bytes of a program are rows of tables.
    """
    return make_spec(2, [5, 10_000], lists=[9]) if name == "two_tower" else small_spec(name)


def exported(config: ModelConfig, spec: FeatureSpec) -> ExportedModel:
    return ExportedModel(randomised(config, spec), spec, config.multi_hot, "v7")


@pytest.fixture(scope="module", autouse=True)
def one_table_of_operators() -> Iterator[None]:
    """The exporter makes its table of ONNX's operators once, and not again for each program."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the folder with the programs of a variant, which is written once."""
    folders: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in folders:
            target = tmp_path_factory.mktemp(name) / "out"
            formats: list[Format] = ["int8", "fp16"] if name in WITH_FORMATS else []
            before = sys.path[:]
            description = write_export(exported(variant(name), spec_of(name)), str(target), formats)
            assert sys.path == before
            assert json.loads((target / "export.json").read_text()) == description
            folders[name] = target
        return folders[name]

    return of


def test_every_architecture_is_chosen() -> None:
    of_chosen = {{**VARIANTS, **SEQUENCE_VARIANTS}[name]["architecture"] for name in CHOSEN}
    assert of_chosen == set(known_architectures())


@pytest.mark.parametrize("name", CHOSEN)
def test_programs_equal_the_model(name: str, folder_of: Callable[[str], Path]) -> None:
    """write_export compares 1, 7 and 300 rows; here two other numbers, with rows that the test draws."""
    model, folder = exported(variant(name), spec_of(name)), folder_of(name)
    description = json.loads((folder / "export.json").read_text())
    vectors = {"two_tower", "sasrec_dropout", "hstu_dropout", "bert4rec", "mult_vae"}
    assert set(description["programs"]) == ({"ranker", "user", "item"} if name in vectors else {"ranker"})
    session = onnxruntime.InferenceSession(folder / "ranker.onnx", providers=["CPUExecutionProvider"])
    program = torch.export.load(folder / "ranker.pt2").module()
    columns = description["inputs"]["categorical"]["columns"]
    assert [entry["feature"] for entry in columns] == [feature.name for feature in model.spec.embedded]
    rng = np.random.default_rng(5)
    for rows in (2, 65):
        dense = rng.normal(size=(rows, len(model.spec.dense))).astype(np.float32)
        blocks = [
            rng.integers(int(entry["number"] > 1), entry["cardinality"], (rows, entry["number"]))
            for entry in columns
        ]
        for entry, block in zip(columns, blocks, strict=True):
            if entry["number"] > 1:  # lists of all lengths, and an empty one
                block[np.arange(entry["number"]) >= rng.integers(0, entry["number"] + 1, (rows, 1))] = 0
                block[0] = 0
        inputs = {"dense": dense, "categorical": np.concatenate(blocks, axis=1)}
        tensors = [torch.from_numpy(values) for values in inputs.values()]
        with torch.inference_mode():
            expected = torch.sigmoid(model.model(*tensors)).numpy()
        (result,) = session.run(None, inputs)
        assert result.shape == (rows,)
        np.testing.assert_allclose(result, expected, atol=1e-5)
        np.testing.assert_allclose(program(*tensors).detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", WITH_FORMATS)
def test_products_of_vectors_order_items_as_the_model_does(
    name: str, folder_of: Callable[[str], Path]
) -> None:
    model = exported(variant(name), spec_of(name))
    sessions = {
        form: onnxruntime.InferenceSession(
            folder_of(name) / f"{form}.onnx", providers=["CPUExecutionProvider"]
        )
        for form in ("ranker", "user", "item")
    }
    one = dict(
        zip(
            ("dense", "categorical"),
            (t.numpy() for t in module._example(model, 1, _ranker(model))),
            strict=True,
        )
    )
    several = {name: np.repeat(values, 9, axis=0) for name, values in one.items()}
    several["categorical"][:, 1] = np.arange(9)  # C1 is the item
    user, items = sessions["user"].run(None, one)[0], sessions["item"].run(None, several)[0]
    probabilities = sessions["ranker"].run(None, several)[0]
    logits = np.log(probabilities / (1 - probabilities))
    products = (items @ user.T)[:, 0]
    np.testing.assert_allclose(products - products[0], logits - logits[0], atol=1e-3)


def _ranker(model: ExportedModel) -> Any:
    return module.forms_of(model.model, model.widths)["ranker"]


@pytest.mark.parametrize(
    "config, spec",
    [
        (variant("dlrm", embedding_storage="fp16"), make_spec(0, [9, 5], lists=[7])),
        (variant("dcn_v2_full"), make_spec(3, [])),
        (
            variant(
                "wide_and_deep",
                crosses=[{"left": ["C0"], "right": ["C1"], "buckets": 50}],
                multi_hot={"pooling": "sum", "max_length": 5},
            ),
            make_spec(2, [9, 5], lists=[7]),
        ),
    ],
    ids=["no dense feature and 16-bit rows", "no ids", "crosses and summed lists"],
)
def test_other_inputs_and_storage(config: ModelConfig, spec: FeatureSpec, tmp_path: Path) -> None:
    description = write_export(exported(config, spec), str(tmp_path / "out"))
    assert max(description["programs"]["ranker"]["greatest_difference"].values()) <= 1e-5


def test_int8_rows_keep_their_size(tmp_path: Path) -> None:
    spec = make_spec(2, [20_000])
    plain = exported(variant("dlrm"), spec)
    write_export(plain, str(tmp_path / "plain"))
    assert to_int8(plain.model) == 1
    write_export(plain, str(tmp_path / "int8"))
    sizes = [(tmp_path / f"{name}/ranker.onnx").stat().st_size for name in ("plain", "int8")]
    assert sizes[1] < 0.5 * sizes[0]


@pytest.mark.parametrize("name", WITH_FORMATS)
def test_vectors_with_fewer_bits_are_close_to_the_model(name: str, folder_of: Callable[[str], Path]) -> None:
    assert_fewer_bits(exported(variant(name), spec_of(name)), folder_of(name), ("ranker", "user", "item"))


def test_programs_with_fewer_bits_are_smaller(folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("two_tower")
    sizes = {kind: (folder / f"ranker.{kind}onnx").stat().st_size for kind in ("", "fp16.", "int8.")}
    assert sizes["fp16."] < 0.6 * sizes[""]
    assert sizes["int8."] < 0.5 * sizes[""]


def assert_fewer_bits(model: ExportedModel, folder: Path, forms: tuple[str, ...]) -> None:
    """Programs really have such numbers, have inputs and outputs of float32, and are close to the model."""
    description = json.loads((folder / "export.json").read_text())
    endings = (".fp16.onnx", ".int8.onnx", ".onnx", ".pt2")
    written = [f"{form}{ending}" for form in forms for ending in endings]
    assert sorted(path.name for path in folder.iterdir()) == sorted(["export.json", *written])
    assert set(description["sha256"]) == set(written)
    example = module._example(model, 65, _ranker(model))
    inputs = dict(zip(("dense", "categorical"), (values.numpy() for values in example), strict=True))
    (expected,) = onnxruntime.InferenceSession(folder / "ranker.onnx").run(None, inputs)
    for number_format, dtypes in (("fp16", {"FLOAT16"}), ("int8", {"INT8"})):
        path = folder / f"ranker.{number_format}.onnx"
        program = onnx.load(path)
        large = [tensor for tensor in program.graph.initializer if np.prod(tensor.dims) >= 64]
        names = {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in large}
        assert dtypes <= names
        if number_format == "fp16":
            assert "FLOAT" not in names
        else:
            assert {"MatMulInteger", "DynamicQuantizeLinear"} <= {node.op_type for node in program.graph.node}
        (result,) = onnxruntime.InferenceSession(path).run(None, inputs)
        assert result.dtype == np.float32
        assert 0 < np.abs(result - expected).mean() < 0.01
        assert description["programs"]["ranker"]["mean_difference"][number_format] < 0.01


def test_a_program_of_fewer_bits_that_differs_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(compare_programs.LARGEST_MEAN_DIFFERENCE, "int8", -1.0)
    with pytest.raises(InfrastructureError, match=r"ranker\.int8\.onnx differs from model v7 on average"):
        write_export(
            exported(variant("logistic_regression"), make_spec(2, [5])), str(tmp_path / "out"), ["int8"]
        )
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_differs_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = module._write_programs

    def spoiled(form: Any, example: Any, path: Path) -> int:
        with torch.no_grad():
            next(form.parameters()).add_(0.5)  # after the model's results were computed
        return write(form, example, path)

    monkeypatch.setattr(module, "_write_programs", spoiled)
    with pytest.raises(InfrastructureError, match="differs from model v7"):
        write_export(exported(variant("logistic_regression"), make_spec(2, [5])), str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_compiled_programs_equal_the_model(tmp_path: Path) -> None:
    model = exported(variant("logistic_regression"), make_spec(2, [9]))
    description = write_export(model, str(tmp_path / "out"), compiled=True)
    assert description["compiled_for"] == instruction_set()
    assert "ranker.aotinductor.pt2" in description["sha256"]
    program = load_compiled(tmp_path / "out/ranker.aotinductor.pt2")
    for rows in (2, 65):
        inputs = module._example(model, rows, _ranker(model))
        with torch.inference_mode():
            torch.testing.assert_close(program(*inputs), _ranker(model)(*inputs), atol=1e-5, rtol=0)


@pytest.mark.processes
def test_a_program_that_cannot_be_compiled_names_the_compiler(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(2, 1), (torch.ones(3, 2),)), tmp_path / "ranker.pt2")
    with (
        inductor.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(ConfigError, match=r"ranker cannot be compiled: No working C\+\+ compiler") as raised,
    ):
        write_compiled(tmp_path / "ranker.pt2", tmp_path / "compiled.pt2")
    assert "install a C++ compiler" in str(raised.value)


def test_large_weights_stand_in_a_file_beside_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES_INSIDE", 100)
    description = write_export(
        exported(variant("logistic_regression"), make_spec(2, [500])), str(tmp_path / "out")
    )
    assert "ranker.onnx.data" in description["sha256"]


def test_a_folder_that_exists_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        write_export(exported(variant("dlrm"), small_spec("dlrm")), str(tmp_path / "out"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="cannot be written"):
        write_export(exported(variant("dlrm"), small_spec("dlrm")), str(tmp_path / "file/out"))


@pytest.mark.parametrize(
    "folder, formats, message",
    [
        ("", (), "'' is not a local folder"),
        ("s3://bucket/out", (), "'s3://bucket/out' is not a local folder"),
        ("out", ["fp8"], r"formats=\['fp8'\] is not a list of number formats"),
        ("out", "int8", "formats='int8' is not a list of number formats"),
    ],
)
def test_wrong_arguments_are_named(
    folder: str, formats: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        write_export(exported(variant("dlrm"), small_spec("dlrm")), folder, formats)
    assert not list(tmp_path.iterdir())
