"""Tasks of score_rows that read and write s3://, on a server of the S3 protocol."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conf.errors import DataError
from scoring.model.predictor import load_predictor
from scoring.requests import ModelRequest
from scoring.rows.file_splits import FileRowGroup, divide_rows
from scoring.rows.task import write_scores
from storage import file_io
from storage.file_digests import split_name
from tests.etl.lakes import servers
from tests.scoring.reference_scores import ReferenceScores
from tests.scoring.rows.test_row_task import expected_of
from tests.scoring.scoring_lake import feature_rows

ROWS = 120


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket of an S3 server."""
    with servers.bucket(tmp_path_factory.mktemp("s3"), "rows"):
        yield "s3://rows"


def test_rows_are_scored_from_and_to_an_object_store(bucket: str, reference: ReferenceScores) -> None:
    rows = feature_rows(reference, day=2, rows=ROWS)
    path = f"{bucket}/features/dt=2026-01-04/a.parquet"
    files, inner = file_io.filesystem(path)
    with files.open_output_stream(inner) as sink:
        pq.write_table(rows, sink, row_group_size=50)
    groups = [FileRowGroup(path, index, 3, count, "2026-01-04") for index, count in enumerate((50, 50, 20))]
    predictor = load_predictor(ModelRequest(reference.request.model.path, "cpu", None), None, 1)
    folder = f"{bucket}/scores/dt=2026-01-05/a1"
    names = [
        split_name(name)[0]
        for task in divide_rows(groups, 2, 1000)
        for name in write_scores(predictor, task, folder, 1, 1000)
    ]
    files, inner = file_io.filesystem(folder)
    actual = pa.concat_tables(pq.read_table(f"{inner}/{name}", filesystem=files) for name in names)
    assert actual.column("row_id").to_pylist() == rows.column("row_id").to_pylist()
    np.testing.assert_allclose(
        actual.column("probability").to_numpy(), expected_of(reference, rows), atol=1e-6
    )
    file_io.delete_file(path)
    with pytest.raises(DataError, match=r"s3://rows/features/dt=2026-01-04/a.parquet does not exist"):
        write_scores(predictor, divide_rows(groups, 1, 1000)[0], folder, 1, 1000)
