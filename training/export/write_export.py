"""Writes a trained model as ONNX and torch.export programs, after comparing them with the model.

ONNX Runtime's tools can also write the ONNX program with smaller number formats:

* `fp16`: weights, embedding tables and most operations are in float16; inputs and outputs keep their dtypes.
  Probabilities are computed in float32 from float16 logits.
* `int8`: weights of products are int8 with a scale per column, and inputs of products are quantised while the
  program runs (`onnxruntime.quantization.quantize_dynamic`). Embedding tables are int8 with a scale per row
  (training/embeddings/scoring_tables.py).

benchmarks/export_formats.py measures how much each format changes the AUC and the recommendation lists.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never, get_args

import numpy as np
import torch
from torch import Tensor, nn

from conf.errors import ConfigError, InfrastructureError
from conf.types import MultiHot
from storage.feature_spec import PAD_ID, FeatureSpec
from storage.file_io import local_folder
from training.embeddings.scoring_tables import to_int8
from training.models.inputs import id_columns

Format = Literal["fp16", "int8"]
# Limit of the mean difference between a program and the model. export.json contains the difference. A program
# with a larger difference is not published. The benchmark measures up to 7e-5 with fp16 and 3e-3 with int8 on
# a test day, so the limits find programs that are broken.
LARGEST_MEAN_DIFFERENCE: dict[Format, float] = {"fp16": 0.005, "int8": 0.05}

DESCRIPTION = "export.json"

# The numbers of rows with which programs and model are compared. The exporter traces a program with an input
# of _TRACED rows.
_COMPARED, _TRACED = (1, 7, 300), 3

# ONNX files cannot be larger than 2 GB. Weights of larger models are in a second file.
_MOST_BYTES_INSIDE = 1_500_000_000


@dataclass(frozen=True)
class ExportedModel:
    """The model to export.

    Attributes:
        model: the module, on the CPU, in evaluation mode. Its table rows are in memory.
        spec, multi_hot: its features, and how lists of ids are padded.
        version: its version.
    """

    model: nn.Module
    spec: FeatureSpec
    multi_hot: MultiHot
    version: str

    @property
    def widths(self) -> dict[str, int]:
        """Returns the number of columns of each input."""
        columns = id_columns(self.spec, self.multi_hot)
        return {DENSE: len(self.spec.dense), CATEGORICAL: columns[-1][1].stop if columns else 0}


def write_export(
    exported: ExportedModel, folder: str, formats: Sequence[Format] = (), *, compiled: bool = False
) -> dict[str, Any]:
    """Writes the programs of a model, and export.json, which describes them, to a new folder.

    A model is exported in one or three forms: always as `ranker`, and also as `user` and `item` if it
    computes user and item vectors. For each form, the folder has the files `<form>.onnx` and `<form>.pt2`,
    and for each of `formats` the file `<form>.<format>.onnx`. If `compiled` is true, the folder also has
    `<form>.aotinductor.pt2`. If a program differs too much from the model, no file is left in the folder.

    Args:
        exported: the model. If `formats` contains `int8`, the function converts the tables of this model to
            int8.
        folder: a folder that does not exist yet.
        formats: number formats with fewer bits, in which each ONNX program is also written.
        compiled: whether each program is also compiled for the processor of this machine.

    Returns:
        The content of export.json.

    Raises:
        ConfigError: the folder exists or is not a local path, a format in `formats` is unknown, or compiled
            programs are requested and there is no C++ compiler.
        InfrastructureError: the folder cannot be written, or a program differs too much from the model.
    """
    unknown = [name for name in formats if name not in get_args(Format)]
    if isinstance(formats, str) or unknown:
        raise ConfigError(
            f"formats={formats!r} is not a list of number formats",
            f"pass a list with some of {list(get_args(Format))}",
        )
    target = local_folder(folder)
    if target.exists():
        raise ConfigError(f"{target} exists already", "pass a folder that does not exist, or remove this one")
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.mkdir(parents=True)
        description = _write(exported, scratch, formats, compiled)
        scratch.rename(target)
    except OSError as error:
        raise InfrastructureError(
            f"{target} cannot be written: {error}", "choose another folder, or free disk space"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return description


def _write(
    exported: ExportedModel, folder: Path, formats: Sequence[Format], compiled: bool
) -> dict[str, Any]:
    programs: dict[str, Any] = {}
    opset = 0
    forms = forms_of(exported.model, exported.widths)
    samples = {
        name: Sample.of(form, exported.version, [_example(exported, rows, form) for rows in _COMPARED])
        for name, form in forms.items()
    }
    with _quiet():
        for name, sample in samples.items():
            example = _example(exported, _TRACED, sample.form)
            opset = _write_programs(sample.form, example, folder / name)
            if compiled:
                write_compiled(folder / f"{name}.pt2", folder / f"{name}.{COMPILED}")
            programs[name] = {
                "output": sample.form.output,
                "greatest_difference": sample.greatest_differences(folder / name),
            }
        for number_format in sorted(set(formats)):  # fp16 first, because int8 changes the tables
            _write_smaller(exported, samples, folder, number_format)
        for name, sample in samples.items() if formats else ():
            programs[name]["mean_difference"] = {
                it: sample.mean_difference(folder / f"{name}.{it}.onnx", it) for it in formats
            }
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    description = {
        "model_version": exported.version,
        "workflow_version": exported.spec.workflow_version,
        "opset": opset,
        "torch": torch.__version__,
        **({"compiled_for": instruction_set()} if compiled else {}),
        "inputs": _layout(exported),
        "programs": programs,
        "sha256": files,
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return description


def _write_programs(form: Ranker, example: tuple[Tensor, ...], path: Path) -> int:
    """Writes a form of the model as a torch.export and an ONNX program; returns ONNX's opset."""
    program = _program(form, example)
    torch.export.save(program, path.with_suffix(".pt2"))
    return _write_onnx(form, program, path.with_suffix(".onnx"))


def _program(form: Ranker, example: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    shapes = (tuple({0: torch.export.Dim.DYNAMIC} for _ in example),)
    return torch.export.export(form, example, dynamic_shapes=shapes, strict=False)


def _write_onnx(form: Ranker, program: torch.export.ExportedProgram, path: Path) -> int:
    """Writes a program as ONNX, and returns the opset."""
    converted = torch.onnx.export(
        program, (), dynamo=True, input_names=list(form.inputs), output_names=[form.output], verbose=False
    )
    if converted is None:
        raise RuntimeError("internal error, please report: torch.onnx.export returned no program")
    converted.save(path, external_data=_is_large(form))
    return int(converted.model.opset_imports[""])


def _is_large(form: Ranker) -> bool:
    """Returns whether the weights are so large that they are written to a separate file."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in form.state_dict().values())
    return size > _MOST_BYTES_INSIDE


def _write_smaller(
    exported: ExportedModel, samples: Mapping[str, Sample], folder: Path, number_format: Format
) -> None:
    """Writes each form as an ONNX program in a number format. For int8, this changes the model's tables."""
    if number_format == "int8":
        to_int8(exported.model)
    for name, sample in samples.items():
        source = folder / f"{name}.onnx"
        if number_format == "int8":
            source = folder / f"{name}.tables.onnx"
            _write_onnx(sample.form, _program(sample.form, _example(exported, _TRACED, sample.form)), source)
        large = _is_large(sample.form)
        _convert_numbers(
            source, folder / f"{name}.{number_format}.onnx", number_format, separate_weights=large
        )
        if number_format == "int8":
            for path in folder.glob(f"{source.name}*"):
                path.unlink()


def _example(exported: ExportedModel, rows: int, form: Ranker) -> tuple[Tensor, ...]:
    """Returns random inputs for a form such as `ranker`. Any id can occur, and lists can have any length."""
    generator = torch.Generator().manual_seed(rows)
    columns = [torch.zeros(rows, 0, dtype=torch.int64)]
    for feature, span in id_columns(exported.spec, exported.multi_hot):
        width = span.stop - span.start
        cardinality, is_list = feature.cardinality or 1, feature.kind == "multi_hot"
        lowest = min(int(is_list), cardinality - 1)  # ids within a list are never PAD_ID
        ids = torch.randint(lowest, cardinality, (rows, width), generator=generator)
        if is_list:
            lengths = torch.randint(0, width + 1, (rows, 1), generator=generator)
            ids = torch.where(torch.arange(width) < lengths, ids, PAD_ID)
        columns.append(ids)
    dense = torch.randn(rows, exported.widths[DENSE], generator=generator)
    by_name = {DENSE: dense, CATEGORICAL: torch.cat(columns, dim=1)}
    return tuple(by_name[name] for name in form.inputs)


def _layout(exported: ExportedModel) -> Mapping[str, Any]:
    """Returns a description of the columns of the inputs `dense` and `categorical`."""
    return {
        DENSE: {"dtype": "float32", "columns": [feature.name for feature in exported.spec.dense]},
        CATEGORICAL: {
            "dtype": "int64",
            "padding": PAD_ID,
            "columns": [
                {"feature": feature.name, "first": span.start, "number": span.stop - span.start}
                | {"cardinality": feature.cardinality}
                for feature, span in id_columns(exported.spec, exported.multi_hot)
            ],
        },
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides warnings of torch's exporter, which are about its own code."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


# The code below defines the forms in which a model is exported: `ranker`, `user` and `item`. Each form is a
# module whose inputs and outputs are tensors.
#
# While torch exports a model (`torch.compiler.is_exporting()`), lookups, histories and interactions use plain
# operators. So the exported program has a dynamic number of rows, and no operators of this project.
#
# Notation: B rows, D dense features, W columns of ids, E numbers per vector.

DENSE, CATEGORICAL = "dense", "categorical"


class Ranker(nn.Module):
    """Computes click probabilities.

    Args:
        model: a model in evaluation mode.
        inputs: the names of the inputs that have at least one column: `dense`, `categorical` or both.
    """

    output = "probability"

    def __init__(self, model: nn.Module, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.inputs = tuple(inputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns probabilities (B,) float32 from `dense` (B, D) float32 and `categorical` (B, W) int64."""
        return torch.sigmoid(self.model(*self.dense_and_categorical(inputs)).float())

    def dense_and_categorical(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns `dense` and `categorical`; an input without columns is (B, 0)."""
        by_name = dict(zip(self.inputs, inputs, strict=True))
        rows = inputs[0].shape[0]
        dense = by_name.get(DENSE)
        categorical = by_name.get(CATEGORICAL)
        return (
            inputs[0].new_zeros(rows, 0, dtype=torch.float32) if dense is None else dense,
            inputs[0].new_zeros(rows, 0, dtype=torch.int64) if categorical is None else categorical,
        )


class SideVectors(Ranker):
    """Computes the vectors of users or of items. Their dot product orders items as the model's logits do.

    Args:
        model: a model with the methods `user_vectors` and `item_vectors`.
        inputs: the names of the inputs that have at least one column: `dense`, `categorical` or both.
        side: `user` or `item`.
    """

    output = "vector"

    def __init__(self, model: nn.Module, inputs: Sequence[str], side: str) -> None:
        super().__init__(model, inputs)
        self._side = side

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns vectors (B, E) float32. Columns of features of the other side have no effect."""
        model: Any = self.model
        vectors: Tensor = getattr(model, f"{self._side}_vectors")(*self.dense_and_categorical(inputs))
        return vectors.float()


def forms_of(model: nn.Module, widths: Mapping[str, int]) -> dict[str, Ranker]:
    """Returns the forms of a model by name: `ranker`, and for some models also `user` and `item`.

    Args:
        model: a model in evaluation mode.
        widths: number of columns of `dense` and of `categorical`.
    """
    inputs = [name for name in (DENSE, CATEGORICAL) if widths[name]]
    forms: dict[str, Ranker] = {"ranker": Ranker(model, inputs)}
    if hasattr(model, "user_vectors") and hasattr(model, "item_vectors"):
        forms |= {side: SideVectors(model, inputs, side) for side in ("user", "item")}
    return forms


# The code below compares exported programs with the model that they were made from.

# Largest allowed difference between an exported program and the model. For probabilities, it is absolute. For
# the numbers of a vector, it is relative to the vector's largest number.
TOLERANCE = 1e-5
_ERRORS_ONLY = 3


@dataclass(frozen=True)
class Sample:
    """Inputs of a form (such as `ranker`), and the results of the model for these inputs.

    Attributes:
        form: the form.
        version: the model's version.
        inputs: inputs of several calls.
        expected: the results of the calls: (B,) or (B, E) float32.
    """

    form: Ranker
    version: str
    inputs: Sequence[tuple[Tensor, ...]]
    expected: Sequence[np.ndarray[Any, Any]]

    @classmethod
    def of(cls, form: Ranker, version: str, inputs: Sequence[tuple[Tensor, ...]]) -> Sample:
        """Runs a form such as `ranker` on inputs, and stores the results; the model may change afterwards."""
        with torch.inference_mode():
            return cls(form, version, inputs, [form(*of_call).numpy() for of_call in inputs])

    def greatest_differences(self, path: Path) -> dict[str, float]:
        """Returns the greatest difference from the model for each program of a form, by kind of program.

        The kinds are ONNX, torch.export and, if the export has compiled programs, compiled. `path` is the
        common path of the programs, without file endings.

        Raises:
            InfrastructureError: a difference is larger than TOLERANCE.
        """
        program = torch.export.load(path.with_suffix(".pt2")).module()
        with torch.inference_mode():
            results = {
                "onnx": self._run_onnx(path.with_suffix(".onnx")),
                "pt2": [program(*of_call).numpy() for of_call in self.inputs],
            }
            compiled = path.with_name(f"{path.name}.{COMPILED}")
            if compiled.exists():
                package = load_compiled(compiled)
                results[COMPILED] = [package(*of_call).numpy() for of_call in self.inputs]
        greatest = {}
        for kind, of_calls in results.items():
            greatest[kind] = max(float(differences.max()) for differences in self._differences(of_calls))
            self._require(greatest[kind], TOLERANCE, f"{path.name}.{kind}", "by up to")
        return greatest

    def mean_difference(self, path: Path, number_format: Format) -> float:
        """Returns the mean difference between the model and the program `path`, which uses fewer bits.

        Raises:
            InfrastructureError: the difference is larger than LARGEST_MEAN_DIFFERENCE.
        """
        differences = [of_call.ravel() for of_call in self._differences(self._run_onnx(path))]
        mean = float(np.concatenate(differences).mean())
        self._require(mean, LARGEST_MEAN_DIFFERENCE[number_format], path.name, "on average by")
        return mean

    def _run_onnx(self, path: Path) -> list[np.ndarray[Any, Any]]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY  # hides warnings about constants
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return [
            session.run(
                [self.form.output],
                {name: values.numpy() for name, values in zip(self.form.inputs, of_call, strict=True)},
            )[0]
            for of_call in self.inputs
        ]

    def _differences(self, results: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Returns the absolute differences from the expected results, for each call.

        If the largest expected number of a call is above 1, its differences are divided by that number.
        """
        return [
            np.abs(result - expected) / max(1.0, float(np.abs(expected).max()))
            for result, expected in zip(results, self.expected, strict=True)
        ]

    def _require(self, difference: float, limit: float, program: str, how: str) -> None:
        if not difference <= limit:  # unlike `>`, this is also true for NaN
            raise InfrastructureError(
                f"{program} differs from model {self.version} {how} {difference:.2g} (at most {limit} is "
                "allowed)",
                "please report this; nothing was exported",
            )


# The code below compiles programs of torch.export for CPUs with AOTInductor (docs.pytorch.org,
# "AOTInductor").

COMPILED = "aotinductor.pt2"  # the ending of the names of compiled programs
_OPTIONS = {"freezing": True}  # weights are stored in the order in which products read them
_LONGEST_OUTPUT = 1_000  # largest number of characters of the compiler's output in an error


def write_compiled(source: Path, target: Path) -> None:
    """Compiles a program for any number of rows, for the processor of this machine.

    Args:
        source: the program, a file of `torch.export.save`.
        target: the file to write, which `torch._inductor.aoti_load_package` loads.

    Raises:
        ConfigError: there is no C++ compiler, or it fails.
    """
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.exc import CppCompileError, InductorError, InvalidCxxCompiler

    try:
        with torch.no_grad():
            aoti_compile_and_package(
                torch.export.load(source), package_path=str(target), inductor_configs=_OPTIONS
            )
    except (InductorError, InvalidCxxCompiler, CppCompileError) as error:
        cause = error.inner_exception if isinstance(error, InductorError) else error
        if not isinstance(cause, InvalidCxxCompiler | CppCompileError):
            raise
        text = cause.output.strip()[-_LONGEST_OUTPUT:] if isinstance(cause, CppCompileError) else str(cause)
        raise ConfigError(
            f"{source.stem} cannot be compiled: {text}",
            "install a C++ compiler (g++, or set CXX), or export without compiled programs",
        ) from error


def load_compiled(path: Path) -> Callable[..., Tensor]:
    """Returns a compiled program as a function of its inputs."""
    from torch._inductor import aoti_load_package

    program: Callable[..., Tensor] = aoti_load_package(str(path))
    return program


def instruction_set() -> str:
    """Returns the vector instructions that compiled programs use, such as avx512; empty if none."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    chosen = pick_vec_isa()
    return str(chosen) if chosen else ""


# The code below writes programs with smaller number formats.


def _convert_numbers(source: Path, target: Path, number_format: Format, *, separate_weights: bool) -> None:
    """Writes a program in another number format.

    Args:
        source: the ONNX program in float32. For `int8`, the tables of its model are already int8.
        target: the file to write.
        number_format: `fp16` or `int8`.
        separate_weights: whether the weights are in a separate file, because they are too large for one file.
    """
    if number_format == "fp16":
        _write_fp16(source, target, separate_weights=separate_weights)
    elif number_format == "int8":
        _write_int8(source, target, separate_weights=separate_weights)
    else:
        assert_never(number_format)


def _write_fp16(source: Path, target: Path, *, separate_weights: bool) -> None:
    import onnx

    with _path_of_tools():
        from onnxruntime.transformers import float16

    blocked = [*float16.DEFAULT_OP_BLOCK_LIST, "Sigmoid"]
    program = float16.convert_float_to_float16(str(source), keep_io_types=True, op_block_list=blocked)
    onnx.save(
        program,
        target,
        save_as_external_data=separate_weights,
        location=f"{target.name}.data",
        size_threshold=1024,
    )


def _write_int8(source: Path, target: Path, *, separate_weights: bool) -> None:
    import onnx

    with _path_of_tools():
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    program = onnx.load(source)
    add_pre_process_metadata(program)  # torch has already done the rest of the pre-processing
    quantize_dynamic(
        program,
        target,
        op_types_to_quantize=["MatMul"],  # Gemm nodes too: the tool converts them to MatMul
        per_channel=True,
        weight_type=QuantType.QInt8,
        use_external_data_format=separate_weights,
    )


@contextmanager
def _path_of_tools() -> Iterator[None]:
    """A context in which modules of onnxruntime.transformers can import each other by their short names.

    Importing the package `onnxruntime.transformers` would add its folder to sys.path permanently. Later
    imports of other code could then find its modules by mistake.
    """
    import onnxruntime

    folder = str(Path(onnxruntime.__file__).parent / "transformers")
    before = list(sys.path)
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path[:] = before
