"""Reads columns of one day's raw log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.text.parse_block import FileLayout, columns_to_parse, layout_of_days, plain, read_split
from etl.workflow.feature_plan import FeaturePlan
from spark.rows import Rows
from spark.workers import Workers
from storage.feature_spec import ITEM_KEY, LABEL, USER_KEY

_KEYS = pa.schema([(USER_KEY, pa.string()), (ITEM_KEY, pa.string()), (LABEL, pa.float32())])


def read_clicks(workers: Workers, plan: FeaturePlan, raw: RawFiles) -> Rows:
    """Returns user_key, item_key and label of each good row of a day's log. The section `keys` must be set.

    Tasks of `workers` parse the log. The rows do not get the histories, attributes and other additions that
    the configuration may request.
    """
    layout = layout_of_days(plan, [raw])
    splits = tuple(layout.reader.splits())
    return workers.run(len(splits), partial(_clicks_of, splits, layout, columns_to_parse(layout, ())), _KEYS)


def _clicks_of(
    splits: tuple[FileSplit, ...], layout: FileLayout, columns: Sequence[str], index: int
) -> Iterator[pa.RecordBatch]:
    """Runs one task: parses one file split."""
    for parsed in read_split(splits[index], layout, columns):
        values = [plain(parsed.columns[field.name]).cast(field.type) for field in _KEYS]
        yield pa.RecordBatch.from_arrays(values, schema=_KEYS)
