"""The rows of top-k lists, as Arrow batches."""

from __future__ import annotations

import pyarrow as pa
from torch import Tensor

RECOMMENDATIONS = pa.schema(
    [
        ("user_id", pa.string()),
        ("position", pa.int32()),
        ("item_id", pa.string()),
        ("score", pa.float32()),
        ("reason", pa.string()),
    ]
)


def list_rows(
    filled: Tensor, score: Tensor, items: pa.Array, reasons: pa.Array, users: pa.Array
) -> pa.RecordBatch:
    """Returns list entries as a batch with the schema RECOMMENDATIONS.

    Args:
        filled: (U, K) bool on the CPU. There is one list entry for each true cell, in row order.
        score: the score of each list entry, on the CPU.
        items: the item key of each list entry.
        reasons: the reason of each list entry.
        users: the keys of the U users.
    """
    row, position = filled.nonzero(as_tuple=True)
    return pa.RecordBatch.from_arrays(
        [
            users.take(pa.array(row.numpy())),
            pa.array((position + 1).int().numpy()),
            items,
            pa.array(score.numpy()),
            reasons,
        ],
        schema=RECOMMENDATIONS,
    )
