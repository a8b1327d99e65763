"""Probabilities of feature rows, an Arrow batch at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import torch

from conf.errors import DataError
from scoring.contract import PROBABILITY
from scoring.predictor import Predictor, model_inputs


@torch.inference_mode()
def score_batch(predictor: Predictor, batch: pa.RecordBatch, keep: Sequence[str]) -> pa.RecordBatch:
    """The columns `keep` of a batch and the click probability of each row, in the order of the rows.

    Raises:
        DataError: a probability is NaN; names the row by its kept columns.
    """
    table = pa.Table.from_batches([batch])
    columns = {each.name: table.column(each.name) for each in predictor.spec.features}
    inputs = model_inputs(columns, predictor.spec, predictor.multi_hot, batch.num_rows)
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
