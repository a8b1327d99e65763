"""Writes a fitted workflow with its tables below a folder, in the format of a lake."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import InfrastructureError
from etl.ops.keyed import KEY
from etl.ops.tables import workflow_table
from etl.workflow.local_workflow import LocalWorkflow, save_workflow, workflow_exists
from storage import file_io
from storage.paths import Lake
from storage.publish import new_attempt, own_path, publish_files

# Stands for a table whose manifest names no file, because it has no rows.
_WITHOUT_ROWS = pa.table({KEY: pa.array([], pa.string())})


def save_fitted(lake: Lake, workflow: LocalWorkflow) -> None:
    """Publishes the tables of a workflow and then the workflow, unless this version exists there.

    Raises:
        DataError: a file of the workflow does not exist, or is damaged.
        InfrastructureError: the storage cannot be written.
    """
    if workflow_exists(lake, workflow.version):
        return
    rows = {}
    for name in workflow.local.names:
        partition = workflow_table(lake, workflow.version, name)
        attempt = new_attempt(partition)
        files = [
            f"{attempt}/{_write(partition.file(f'{attempt}/part-{index:05d}.parquet'), part)}"
            for index, part in enumerate([*workflow.local.parts(name)] or [_WITHOUT_ROWS])
        ]
        rows[name] = publish_files(partition, dict.fromkeys(files), inputs={"version": workflow.version}).rows
    save_workflow(lake, workflow, rows)


def _write(path: str, part: pa.Table) -> str:
    """Writes one file and returns its name. Raises InfrastructureError if it cannot be written."""
    path = own_path(path)
    files, inner = file_io.filesystem(path)
    try:
        if file_io.is_local(path):
            files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
        with files.open_output_stream(inner) as sink:
            pq.write_table(part, sink, compression="zstd")
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error}", "check the folder, disk space and permissions"
        ) from error
    return path.rsplit("/", 1)[1]
