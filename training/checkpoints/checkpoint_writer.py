"""One checkpoint on its way to disk: copied to host memory at the step, written by a thread while training goes on.

Every rank's thread writes its tensors, then a small JSON, its part. Rank 0's thread looks for the parts of all ranks in
the folder, which all ranks see, and then publishes the index. So threads never talk through collectives, which must be
called in one order on all ranks; what went wrong they tell each other at the next save (`Checkpoints.wait`).
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
from training.checkpoints.blocks import Owned, StoredBlock
from training.checkpoints.finite import require_finite
from training.checkpoints.tensor_file import write_tensors

log = logging.getLogger("nightrank.training")

# Between looks for other ranks' parts: doubled each time, as on an object store every look is a request.
_POLL_S = 0.02
_LONGEST_POLL_S = 1.0


class HostCopy:
    """Host memory for one rank's part of a checkpoint, kept from save to save; pinned where the state is on a GPU."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def take(self, mine: Owned) -> dict[str, list[Tensor]]:
        """Copies what a rank is to write; returns when the copy is whole."""
        pieces: dict[str, Sequence[Tensor]] = {name: [value] for name, value in mine.equal.items()}
        pieces |= mine.rows
        taken = {
            name: [self._copy((name, place), each) for place, each in enumerate(all_of)]
            for name, all_of in pieces.items()
        }
        for device in {each.device for all_of in pieces.values() for each in all_of if each.is_cuda}:
            torch.cuda.synchronize(device)
        return taken

    def _copy(self, key: tuple[str, int], value: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            self._buffers[key] = buffer
        return buffer.copy_(value, non_blocking=True)


@dataclass(frozen=True)
class Contents:
    """What is written of a step.

    Attributes:
        tensors: this rank's, in host memory.
        mine: says which of them are equal on all ranks, and which rows the others hold.
        about: what the index says beside where tensors lie.
        copy_s: what the copy took.
    """

    step: int
    tensors: Mapping[str, Sequence[Tensor]]
    mine: Owned
    about: Mapping[str, Any]
    copy_s: float


class Writing:
    """Starts at once. `on_published` is called on rank 0 when the checkpoint is complete.

    Args:
        stem: what this checkpoint's files begin with; no other attempt uses it.
        index: name of the JSON that makes it a checkpoint.
    """

    def __init__(
        self,
        folder: str,
        stem: str,
        index: str,
        rank: int,
        num_ranks: int,
        contents: Contents,
        on_published: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._stem = stem
        self._index = index
        self._rank = rank
        self._num_ranks = num_ranks
        self._contents = contents
        self._on_published = on_published
        self._error: NightrankError | None = None
        self._written = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def written(self) -> NightrankError | None:
        """Waits until this rank's part is on disk; what went wrong, if anything did."""
        self._written.wait()
        return self._error

    def published(self, patience_s: float) -> NightrankError | None:
        """Waits until the checkpoint is complete, as far as that is this rank's to do; gives up after a while."""
        self._thread.join(patience_s)
        if self._thread.is_alive() and self._error is None:
            self.give_up()
            return self._error or InfrastructureError(
                f"rank 0 does not find what ranks {self._missing(range(self._num_ranks))} wrote to {self._folder}",
                "keep the lake where all ranks see the same files",
            )
        return self._error

    def give_up(self) -> None:
        """Ends the wait for other ranks' parts: this checkpoint will not be complete."""
        self._given_up.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._write()
            self._written.set()
            if self._rank == 0:
                self._publish()
        except NightrankError as error:
            self._error = error
        except Exception as error:  # a thread's error would be seen by nobody
            self._error = InfrastructureError(
                f"checkpoint of step {self._contents.step} failed: {type(error).__name__}: {error}",
                "check disk space and permissions, then rerun to resume from the checkpoint before",
            )
        finally:
            self._written.set()

    def _part(self, rank: int) -> str:
        return f"{self._folder}/{self._stem}.part-{rank:05d}.json"

    def _write(self) -> None:
        began = time.perf_counter()
        contents = self._contents
        require_finite(contents.tensors, f"after step {contents.step}")
        equal = {name: contents.tensors[name] for name in contents.mine.equal}
        rows = {name: contents.tensors[name] for name in contents.mine.rows}
        files, blocks = [], {}
        if equal:
            files.append(asdict(write_tensors(self._folder, f"{self._stem}.dense.safetensors", equal)))
        if rows:
            name = f"{self._stem}.rows-{self._rank:05d}.safetensors"
            files.append(asdict(write_tensors(self._folder, name, rows)))
            blocks = {
                each: [StoredBlock(name, block).to_json() for block in contents.mine.blocks[each]]
                for each in rows
            }
        seconds = {"copy_s": contents.copy_s, "write_s": time.perf_counter() - began}
        file_io.replace_json(self._part(self._rank), {"files": files, "rows": blocks, **seconds})

    def _missing(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if not file_io.exists(self._part(rank))]

    def _publish(self) -> None:
        missing, pause_s = self._missing(range(self._num_ranks)), _POLL_S
        while missing:
            if self._given_up.wait(pause_s):
                return
            missing, pause_s = self._missing(missing), min(2 * pause_s, _LONGEST_POLL_S)
        parts = [file_io.read_json(self._part(rank)) for rank in range(self._num_ranks)]
        rows: dict[str, list[Any]] = {}
        for part in parts:
            for name, blocks in part["rows"].items():
                rows.setdefault(name, []).extend(blocks)
        files = [each for part in parts for each in part["files"]]
        about = {**self._contents.about, "num_ranks": self._num_ranks, "files": files, "rows": rows}
        created = file_io.create_json(
            f"{self._folder}/{self._index}", format_versions.CHECKPOINT.stamp(about)
        )
        for rank in range(self._num_ranks):
            file_io.delete_file(self._part(rank))
        if not created:
            self._withdraw([each["name"] for each in files])
            return
        log.info(
            "checkpoint of step %d: %d bytes, copied in %.2f s, written in %.2f s behind the training",
            self._contents.step,
            sum(each["bytes"] for each in files),
            max(part["copy_s"] for part in parts),
            max(part["write_s"] for part in parts),
        )
        self._on_published()

    def _withdraw(self, names: Sequence[str]) -> None:
        """Another attempt at this training has published a checkpoint of the same step: this one is not needed."""
        log.info(
            "checkpoint of step %d: another attempt at this training has written it", self._contents.step
        )
        if file_io.is_local(self._folder):  # on an object store the index may have named them for a moment
            for name in names:
                file_io.delete_file(f"{self._folder}/{name}")
