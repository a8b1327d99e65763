"""Probabilities of feature rows, an Arrow batch at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from conf.errors import DataError
from conf.types import MultiHot
from scoring.inputs.requests import PROBABILITY
from scoring.model.predictor import Predictor, model_inputs
from storage.feature_spec import FeatureSpec
from training.models.inputs import id_columns, pad_lists


@torch.inference_mode()
def score_batch(predictor: Predictor, batch: pa.RecordBatch, keep: Sequence[str]) -> pa.RecordBatch:
    """The columns `keep` of a batch and the click probability of each row, in the order of the rows.

    Raises:
        DataError: a probability is NaN; names the row by its kept columns.
    """
    table = pa.Table.from_batches([batch])
    columns = {each.name: table.column(each.name) for each in predictor.spec.features}
    make = model_inputs if predictor.device.type == "cpu" else inputs_by_column
    inputs = (
        each.to(predictor.device).contiguous()
        for each in make(columns, predictor.spec, predictor.multi_hot, batch.num_rows)
    )
    probabilities = predictor.probabilities(*inputs).cpu()
    wrong = probabilities.isnan()
    if wrong.any():
        row = {name: batch.column(name)[int(wrong.nonzero()[0])].as_py() for name in keep}
        raise DataError(
            f"model {predictor.version} scores the row {row} as NaN ({int(wrong.sum())} of {batch.num_rows} at once)",
            "look for NaN or infinite features in this row, or a diverged model; train again",
        )
    kept = [batch.column(name) for name in keep]
    return pa.RecordBatch.from_arrays([*kept, pa.array(probabilities.numpy())], names=[*keep, PROBABILITY])


def inputs_by_column(
    columns: Mapping[str, pa.ChunkedArray], spec: FeatureSpec, multi_hot: MultiHot, rows: int
) -> tuple[Tensor, Tensor]:
    """As model_inputs, of all columns, for a device with memory of its own: laid out in memory column by column.

    Columns are copied as they stand, ids stay int32, and it is the device that turns them: a host's core fills a few million
    rows a second row by row, a GPU scores more.

    Returns:
        dense (rows, D) float32 and categorical (rows, W) int32 on the CPU: transposed views of contiguous memory.
    """
    placed = id_columns(spec, multi_hot)
    dense = np.empty((len(spec.dense), rows), dtype=np.float32)
    ids = np.empty((placed[-1][1].stop if placed else 0, rows), dtype=np.int32)
    for index, feature in enumerate(spec.dense):
        dense[index] = columns[feature.name].to_numpy()
    for feature, place in placed:
        column = columns[feature.name]
        if feature.kind == "multi_hot":
            ids[place] = pad_lists(column.combine_chunks(), place.stop - place.start).T
        else:
            ids[place.start] = column.to_numpy()
    return torch.from_numpy(dense).t(), torch.from_numpy(ids).t()
