"""Writes one checkpoint: copies the state to host memory, and writes the copy in a thread during training.

On every rank, the thread writes the rank's tensors, and then a small JSON file that lists them. This JSON
file is called the rank's part. The thread of rank 0 waits until the parts of all ranks exist. Then it
publishes the checkpoint: it writes the index, a JSON file that lists the files of all ranks. Threads call no
collectives, because all ranks must call collectives in the same order. At the next save, ranks exchange the
errors of their threads (`Checkpoints.wait`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from conf.errors import InfrastructureError, NightrankError
from storage import file_io, format_versions
from training.checkpoints.blocks import OwnedState, StoredBlock
from training.checkpoints.finite import require_finite
from training.checkpoints.tensor_file import write_tensors
from training.distributed.collectives import Collectives

log = logging.getLogger("nightrank.training")

# The first pause between two checks for the parts of other ranks. It doubles each time, because every check
# is a request to the object store.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class HostCopy:
    """Host memory for the tensors that one rank writes to a checkpoint. All checkpoints reuse this memory.

    The memory is pinned if the state is on a GPU.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def take(self, owned: OwnedState) -> dict[str, list[Tensor]]:
        """Copies the state that this rank writes, and returns when the copy is complete."""
        tensors: dict[str, Sequence[Tensor]] = {name: [value] for name, value in owned.equal.items()}
        tensors |= owned.rows
        copies = {
            name: [self._copy((name, index), piece) for index, piece in enumerate(pieces)]
            for name, pieces in tensors.items()
        }
        for device in {piece.device for pieces in tensors.values() for piece in pieces if piece.is_cuda}:
            torch.cuda.synchronize(device)
        return copies

    @property
    def bytes(self) -> int:
        """Returns the size of the memory that is already allocated."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def _copy(self, key: tuple[str, int], value: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            self._buffers[key] = buffer
        return buffer.copy_(value, non_blocking=True)


@dataclass(frozen=True)
class CheckpointContents:
    """The tensors and values that one rank writes for a checkpoint.

    Attributes:
        step: number of steps done.
        tensors: this rank's tensors, in host memory.
        owned: says which of the tensors are equal on all ranks, and lists the row blocks of the other
            tensors.
        index: values to store in the checkpoint's index, the JSON file that also lists the checkpoint's
            files.
        copy_s: duration of the copy to host memory, in seconds.
    """

    step: int
    tensors: Mapping[str, Sequence[Tensor]]
    owned: OwnedState
    index: Mapping[str, Any]
    copy_s: float


class CheckpointWriter:
    """Writes one checkpoint in a thread. The constructor starts the thread.

    Args:
        folder: path or URI.
        stem: the start of this checkpoint's file names. No other attempt at this training uses the same stem.
        index: the name of the checkpoint's index file.
        collectives: the collectives of the ranks. Only the properties `rank` and `size` are used.
        contents: the tensors of this rank.
        on_published: called on rank 0 when the checkpoint is complete.
    """

    def __init__(
        self,
        folder: str,
        stem: str,
        index: str,
        collectives: Collectives,
        contents: CheckpointContents,
        on_published: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._stem = stem
        self._index = index
        self._rank = collectives.rank
        self._num_ranks = collectives.size
        self._contents = contents
        self._on_published = on_published
        self._error: NightrankError | None = None
        self._written = threading.Event()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def wait_written(self) -> NightrankError | None:
        """Waits until this rank's files are on disk.

        Returns the error if a file could not be written, and None otherwise.
        """
        self._written.wait()
        return self._error

    def wait_published(self, timeout_s: float) -> NightrankError | None:
        """Waits until the thread has ended. Returns the thread's error, or None.

        If the thread of rank 0 has ended without an error, the checkpoint is published.

        If the thread has not ended after `timeout_s` seconds, the checkpoint is cancelled, and an error is
        returned.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._error is None:
            self.cancel()
            return self._error or InfrastructureError(
                f"rank 0 does not find the files that ranks {self._missing(range(self._num_ranks))} wrote to "
                f"{self._folder}",
                "put the lake on storage that all ranks share",
            )
        return self._error

    def cancel(self) -> None:
        """Stops the thread.

        If the thread is still waiting for the files of other ranks, the checkpoint is not published.
        """
        self._cancelled.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._write()
            self._written.set()
            if self._rank == 0:
                self._publish()
        except NightrankError as error:
            self._error = error
        except Exception as error:  # an error that ends a thread would not be reported
            self._error = InfrastructureError(
                f"checkpoint of step {self._contents.step} failed: {type(error).__name__}: {error}",
                "check disk space and permissions, then rerun to resume from the previous checkpoint",
            )
        finally:
            self._written.set()

    def _part(self, rank: int) -> str:
        return f"{self._folder}/{self._stem}.part-{rank:05d}.json"

    def _write(self) -> None:
        began = time.perf_counter()
        contents = self._contents
        require_finite(contents.tensors, f"after step {contents.step}")
        equal = {name: contents.tensors[name] for name in contents.owned.equal}
        rows = {name: contents.tensors[name] for name in contents.owned.rows}
        files, blocks = [], {}
        if equal:
            files.append(asdict(write_tensors(self._folder, f"{self._stem}.dense.safetensors", equal)))
        if rows:
            file = f"{self._stem}.rows-{self._rank:05d}.safetensors"
            files.append(asdict(write_tensors(self._folder, file, rows)))
            blocks = {
                name: [StoredBlock(file, block).to_json() for block in contents.owned.blocks[name]]
                for name in rows
            }
        seconds = {"copy_s": contents.copy_s, "write_s": time.perf_counter() - began}
        file_io.replace_json(self._part(self._rank), {"files": files, "rows": blocks, **seconds})

    def _missing(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if not file_io.exists(self._part(rank))]

    def _publish(self) -> None:
        missing, pause_s = self._missing(range(self._num_ranks)), _FIRST_PAUSE_S
        while missing:
            if self._cancelled.wait(pause_s):
                return
            missing, pause_s = self._missing(missing), min(2 * pause_s, _LONGEST_PAUSE_S)
        parts = [file_io.read_json(self._part(rank)) for rank in range(self._num_ranks)]
        rows: dict[str, list[Any]] = {}
        for part in parts:
            for name, blocks in part["rows"].items():
                rows.setdefault(name, []).extend(blocks)
        files = [entry for part in parts for entry in part["files"]]
        index = {**self._contents.index, "num_ranks": self._num_ranks, "files": files, "rows": rows}
        created = file_io.create_json(
            f"{self._folder}/{self._index}", format_versions.CHECKPOINT.stamp(index)
        )
        for rank in range(self._num_ranks):
            file_io.delete_file(self._part(rank))
        if not created:
            self._delete_duplicate([entry["name"] for entry in files])
            return
        log.info(
            "checkpoint of step %d: %d bytes, copied in %.2f s, written in %.2f s during the training",
            self._contents.step,
            sum(entry["bytes"] for entry in files),
            max(part["copy_s"] for part in parts),
            max(part["write_s"] for part in parts),
        )
        self._on_published()

    def _delete_duplicate(self, names: Sequence[str]) -> None:
        """Deletes this checkpoint's files because another attempt has published a checkpoint of this step."""
        log.info(
            "checkpoint of step %d: another attempt at this training has written it", self._contents.step
        )
        if file_io.is_local(self._folder):  # an object store's index may have listed them for a moment
            for name in names:
                file_io.delete_file(f"{self._folder}/{name}")
