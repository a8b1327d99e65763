"""Writes ONNX programs with numbers of fewer bits, by the tools of ONNX Runtime.

* `fp16`: weights, embedding tables and most operations are in float16; inputs and outputs keep their dtypes.
  Probabilities are computed in float32 from float16 logits.
* `int8`: weights of products are int8 with a scale per column, and inputs of products are quantised while the
  program runs (`onnxruntime.quantization.quantize_dynamic`). Embedding tables are int8 with a scale per row
  (training/embeddings/scoring_tables.py).

benchmarks/export_formats.py measures how much each format changes the AUC and the lists.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, assert_never

Format = Literal["fp16", "int8"]
# Limit of the mean difference between a program and the model. export.json contains the difference. A program
# with a larger difference is not published. The benchmark measures up to 7e-5 with fp16 and 3e-3 with int8 on
# a test day, so the limits find programs that are broken.
LARGEST_MEAN_DIFFERENCE: dict[Format, float] = {"fp16": 0.005, "int8": 0.05}


def write_smaller(source: Path, target: Path, number_format: Format, *, separate_weights: bool) -> None:
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
    add_pre_process_metadata(program)  # torch has done the other steps of pre-processing
    quantize_dynamic(
        program,
        target,
        op_types_to_quantize=["MatMul"],  # this includes Gemm nodes, which the tool converts to MatMul
        per_channel=True,
        weight_type=QuantType.QInt8,
        use_external_data_format=separate_weights,
    )


@contextmanager
def _path_of_tools() -> Iterator[None]:
    """Lets modules of onnxruntime.transformers import each other by their names without the package.

    The package itself adds its folder to the import path permanently, so other imports could find its
    modules.
    """
    import onnxruntime

    folder = str(Path(onnxruntime.__file__).parent / "transformers")
    before = list(sys.path)
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path[:] = before
