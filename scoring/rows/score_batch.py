"""Computes the click probabilities of the feature rows in one Arrow batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from conf.errors import DataError
from conf.types import MultiHot
from scoring.model.predictor import Predictor, model_inputs
from scoring.requests import PROBABILITY
from storage.feature_spec import FeatureSpec
from storage.id_lists import pad_lists
from training.models.inputs import id_columns


@torch.inference_mode()
def score_batch(predictor: Predictor, batch: pa.RecordBatch, keep: Sequence[str]) -> pa.RecordBatch:
    """Scores the rows of a batch. Returns the columns `keep` and the click probability of each row.

    The rows keep their order.

    Raises:
        DataError: a probability is NaN. The message shows the row's values in the columns `keep`.
    """
    table = pa.Table.from_batches([batch])
    columns = {feature.name: table.column(feature.name) for feature in predictor.spec.features}
    build_inputs = model_inputs if predictor.device.type == "cpu" else inputs_by_column
    inputs = (
        tensor.to(predictor.device).contiguous()
        for tensor in build_inputs(columns, predictor.spec, predictor.multi_hot, batch.num_rows)
    )
    probabilities = predictor.probabilities(*inputs).cpu()
    wrong = probabilities.isnan()
    if wrong.any():
        row = {name: batch.column(name)[int(wrong.nonzero()[0])].as_py() for name in keep}
        raise DataError(
            f"model {predictor.version} scores the row {row} as NaN "
            f"({int(wrong.sum())} of the {batch.num_rows} rows of this batch are NaN)",
            "look for NaN or infinite features in this row, or a diverged model; train again",
        )
    kept = [batch.column(name) for name in keep]
    return pa.RecordBatch.from_arrays([*kept, pa.array(probabilities.numpy())], names=[*keep, PROBABILITY])


def inputs_by_column(
    columns: Mapping[str, pa.ChunkedArray], spec: FeatureSpec, multi_hot: MultiHot, rows: int
) -> tuple[Tensor, Tensor]:
    """Builds the inputs of a model in column-major order, for a GPU.

    The columns are copied unchanged, ids stay int32, and the GPU transposes the matrices. This is faster than
    `model_inputs`, which transposes the columns on one CPU core.

    Returns:
        Two tensors on the CPU: the dense inputs (rows, D) float32, and the categorical inputs (rows, W)
        int32. Both are transposed views of contiguous memory.
    """
    layout = id_columns(spec, multi_hot)
    dense = np.empty((len(spec.dense), rows), dtype=np.float32)
    ids = np.empty((layout[-1][1].stop if layout else 0, rows), dtype=np.int32)
    for index, feature in enumerate(spec.dense):
        dense[index] = columns[feature.name].to_numpy()
    for feature, span in layout:
        column = columns[feature.name]
        if feature.kind == "multi_hot":
            ids[span] = pad_lists(column.combine_chunks(), span.stop - span.start).T
        else:
            ids[span.start] = column.to_numpy()
    return torch.from_numpy(dense).t(), torch.from_numpy(ids).t()
