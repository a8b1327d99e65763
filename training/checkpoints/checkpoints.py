"""Saves and restores the checkpoints of a training run. Any number of ranks can restore a checkpoint.

    step-<n>.json                               the index, written last: without it there is no checkpoint
    step-<n>.<attempt>.dense.safetensors        tensors that are equal on all ranks, written by rank 0
    step-<n>.<attempt>.rows-<rank>.safetensors  the table rows of a rank
    step-<n>.<attempt>.part-<rank>.json         lists the files of a rank; deleted when the index exists

All ranks must be able to read and write the folder of these files, so the folder must be on a shared disk or
an object store. At most one checkpoint is written at a time. Each rank needs host memory for a copy of the
tensors that it writes.

Another attempt at the same training run may run at the same time and use the same folder. All attempts share
the checkpoints that have an index. Each attempt may resume from such a checkpoint, and may delete it when
there are newer checkpoints. A file that no index lists belongs to the attempt whose name is part of the file
name. Other attempts delete such a file only if it is too old to be in use.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pyarrow import fs
from torch import Tensor

from conf.errors import DataError, InfrastructureError, NightrankError
from conf.process import available_memory
from storage import file_io, format_versions
from training.checkpoints.blocks import OwnedState, Stateful, StoredBlock, owned_state
from training.checkpoints.stored import StateMismatchError, StoredState
from training.checkpoints.tensor_file import require_finite, write_tensors
from training.collectives import Collectives, gather_json, raise_on_all_ranks
from training.registry.model_json import ModelFile, damage
from training.registry.training_leftovers import is_older

log = logging.getLogger("nightrank.training")

# How long rank 0 waits for files that other ranks have reported as written. The second, shorter limit applies
# after an error, because then other ranks may have ended.
_PUBLISH_TIMEOUT_S = 60.0
_EXIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Position:
    """The progress of a training run when a checkpoint is saved.

    Attributes:
        step: number of steps done.
        seconds: time spent in these steps, in seconds.
        history: all history entries so far (loss, speed and metrics at some steps), oldest first.
    """

    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Checkpoints:
    """Saves and restores checkpoints.

    Every rank creates one object of this class. All ranks must call the same methods in the same order.

    Use the object as a context manager: on exit, it waits until the last checkpoint is on disk.

    Args:
        folder: path or URI of the folder. The folder is created when it is first needed.
        collectives: the collectives of the training's ranks.
        keep: number of checkpoints to keep; older ones are deleted.
    """

    def __init__(self, folder: str, collectives: Collectives, keep: int = 2) -> None:
        self._folder = CheckpointFolder(folder)
        self._collectives = collectives
        self._keep = keep
        self._attempt = gather_json(collectives, uuid.uuid4().hex[:8])[0]
        self._host_copy = HostCopy()
        self._writer: CheckpointWriter | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until a checkpoint in progress is complete.

        After an error, the time limit of the wait is short, because other ranks may have ended.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            error = writer.wait_written() or writer.wait_published(_EXIT_TIMEOUT_S)
            if error is not None:
                log.warning("the last checkpoint is not complete: %s", error.problem)
            writer.cancel()

    @property
    def _leads(self) -> bool:
        return self._collectives.rank == 0

    def space_problem(self, trainer: Stateful) -> str | None:
        """Returns the reason why there is no space for another checkpoint; None if there is space.

        All ranks get the same result.

        After the state has been copied to host memory, at least a fifth of the memory that was available on
        each host must still be free. Ranks on one host share its memory. The disk must have space for the
        files of all ranks.
        """
        owned = owned_state(trainer.state(), trainer.row_state(), leads=self._leads)
        size, missing = owned.bytes, self._host_copy.missing_bytes(owned)
        free = self._folder.free_bytes() if self._leads else None
        facts = gather_json(
            self._collectives, [socket.gethostname(), missing, available_memory(), size, free]
        )
        for host in dict.fromkeys(fact[0] for fact in facts):
            needed = sum(fact[1] for fact in facts if fact[0] == host)
            available = min(fact[2] for fact in facts if fact[0] == host)
            if needed > 0.8 * available:
                return (
                    f"a copy of the training's state needs {needed >> 20} MiB of memory on {host}, where "
                    f"{available >> 20} MiB are free"
                )
        total, free = sum(fact[3] for fact in facts), facts[0][4]
        if free is not None and total > free:
            return (
                f"a checkpoint needs {total >> 20} MiB in {self._folder.path}, where {free >> 20} MiB are "
                "free"
            )
        return None

    def save(self, trainer: Stateful, position: Position, best_step: int | None = None) -> None:
        """Waits for the previous checkpoint, copies the state, and starts a thread that writes the copy.

        Args:
            trainer: the state to save.
            position: the progress of the training.
            best_step: a step whose checkpoint is kept even if newer ones exist; None if there is no such
                step.

        Raises:
            InfrastructureError, DataError: a rank failed to write the previous checkpoint. Raised on all
                ranks.
        """
        self.wait()
        began = time.perf_counter()
        owned = owned_state(trainer.state(), trainer.row_state(), leads=self._leads)
        tensors = self._host_copy.take(owned)
        index = {"position": {**asdict(position), "history": list(position.history)}}
        name = f"step-{position.step:012d}"
        self._writer = CheckpointWriter(
            self._folder.path,
            f"{name}.{self._attempt}",
            f"{name}.json",
            self._collectives,
            CheckpointContents(position.step, tensors, owned, index, time.perf_counter() - began),
            lambda: self._folder.delete_all_but(self._keep, best_step),
        )

    def wait(self) -> None:
        """Waits until the last checkpoint is complete.

        Raises:
            InfrastructureError, DataError: a rank failed to write the checkpoint. Raised on all ranks.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            raise_on_all_ranks(self._collectives, writer.wait_written())
            error = writer.wait_published(_PUBLISH_TIMEOUT_S) if self._leads else None
            raise_on_all_ranks(self._collectives, error)
        finally:
            writer.cancel()

    def restore(self, trainer: Stateful) -> Position | None:
        """Restores a trainer from the newest complete checkpoint.

        If there is no complete checkpoint, this method returns None and changes nothing.

        The placement of rows and the number of ranks may have changed since the checkpoint was saved. Damaged
        checkpoints are skipped with a warning and deleted. Old files of killed attempts are deleted too.

        Raises:
            DataError: a newer release wrote the newest checkpoint, or the checkpoint belongs to another
                training run. Raised on all ranks.
            InfrastructureError: another attempt deleted the checkpoints while they were read.
        """
        damaged: dict[int, str] = {}
        position: Position | None = None
        changed = False  # whether another attempt deleted a checkpoint while it was loaded
        while position is None and (newest := self._newest_except(damaged)) is not None:
            step, text = newest
            raise_on_all_ranks(self._collectives, self._version_error(step, text))
            problems = gather_json(self._collectives, self._examine(step, text))
            problem = next(filter(None, problems), None)
            if problem is None:
                position = self._load(step, text, trainer)
                changed = changed or position is None
            elif not self._is_replaced(step, text):
                damaged[step] = text
                if self._leads:
                    log.warning(
                        "the checkpoint of step %d is damaged, so the training looks for an earlier one: %s",
                        step,
                        problem,
                    )
        if position is None and changed:
            raise InfrastructureError(
                f"another attempt at this training run deleted the checkpoints in {self._folder.path} while "
                "they were read",
                "rerun the job, which uses that attempt's newer checkpoints or published model",
            )
        if self._leads:
            self._folder.delete_damaged(damaged)
            self._folder.delete_old_leftovers()
        gather_json(self._collectives, None)  # a barrier: no rank writes before the deletions are done
        if position is not None:
            log.info("resuming after step %d", position.step)
        return position

    def load(self, trainer: Stateful, step: int) -> bool:
        """Loads the checkpoint of a step into a trainer.

        Returns False if the checkpoint is missing or damaged. If it is damaged, the method also logs a
        warning. In both cases the trainer stays unchanged. All ranks must call this method, and get the same
        result. Call `wait` first, because no checkpoint may be in progress.

        Raises:
            DataError: the checkpoint belongs to another training run. Raised on all ranks.
        """
        text = gather_json(self._collectives, self._folder.index_text(step) if self._leads else None)[0]
        if text is None:
            return False
        problem = next(filter(None, gather_json(self._collectives, self._examine(step, text))), None)
        if problem is not None and self._leads:
            log.warning("the checkpoint of step %d is damaged: %s", step, problem)
        return problem is None and self._load(step, text, trainer) is not None

    def delete(self) -> None:
        """Deletes the checkpoints of a complete training run, but no files that another attempt writes."""
        if self._leads:
            self._folder.delete_all(self._attempt)

    def _newest_except(self, damaged: Collection[int]) -> tuple[int, str] | None:
        """Returns the step and the index text of the newest checkpoint whose step is not in `damaged`.

        All ranks get the same result. The result is None if there is no such checkpoint.
        """
        newest: tuple[int, str] | None = None
        while self._leads and newest is None:
            step = next((step for step in self._folder.steps() if step not in damaged), None)
            if step is None:
                break
            text = self._folder.index_text(step)
            # If the index does not exist any more, another attempt has just deleted it. An attempt deletes
            # an intact checkpoint only when there is a newer one or a published model, so look again.
            newest = None if text is None else (step, text)
        of_rank_0 = gather_json(self._collectives, newest)[0]
        return None if of_rank_0 is None else (int(of_rank_0[0]), str(of_rank_0[1]))

    def _is_replaced(self, step: int, text: str) -> bool:
        """Returns whether another attempt deleted or replaced a checkpoint since its index was read.

        This is a collective: all ranks must call it.
        """
        replaced = self._leads and self._folder.index_text(step) != text
        return bool(gather_json(self._collectives, replaced)[0])

    def _version_error(self, step: int, text: str) -> DataError | None:
        """Returns an error if a newer release wrote the checkpoint.

        Such a checkpoint is not damaged, so it must not be deleted.
        """
        try:
            values = file_io.parse_json(text, self._folder.index_path(step))
        except DataError:  # the index is damaged; `_examine` reports the damage
            return None
        if not isinstance(values, dict):
            return None
        try:
            format_versions.CHECKPOINT.check(values, self._folder.index_path(step))
        except DataError as error:
            return error
        return None

    def _examine(self, step: int, text: str) -> str | None:
        """Returns a description of a checkpoint's damage; None if this rank finds no damage.

        Each rank reads only some of the checkpoint's files.
        """
        try:
            index = file_io.parse_json(text, self._folder.index_path(step))
            entries = [ModelFile(**entry) for entry in index["files"]]
            Position(**index["position"])
            self._stored_state(index)
            if any(file_io.leaves(entry.name) for entry in entries):
                raise ValueError("the index lists a file outside the checkpoint folder")
        except DataError as error:
            return error.problem
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return f"{self._folder.index_path(step)} is not a valid checkpoint index: {error}"
        for entry in entries[self._collectives.rank :: self._collectives.size]:
            problem = damage(self._folder.path, entry)
            if problem:
                return problem
        return None

    def _stored_state(self, index: dict[str, Any]) -> StoredState:
        rows = {
            name: [StoredBlock.from_json(block) for block in blocks] for name, blocks in index["rows"].items()
        }
        names = {entry["name"]: "" for entry in index["files"]}
        for stored in (block for blocks in rows.values() for block in blocks):
            if stored.file not in names:
                raise ValueError(
                    f"the index refers to rows in {stored.file!r}, which is not in its list of files"
                )
        return StoredState(self._folder.path, names, rows)

    def _load(self, step: int, text: str, trainer: Stateful) -> Position | None:
        """Loads a checkpoint into the trainer, and returns the progress that the checkpoint contains.

        Returns None if another attempt deleted or replaced the checkpoint in the meantime.
        """
        index = json.loads(text)
        failure: NightrankError | None = None
        try:
            self._stored_state(index).load(trainer.state(), trainer.row_state())
        except StateMismatchError as error:
            failure = DataError(
                f"the checkpoint of step {step} belongs to another training run: {error}",
                f"delete {self._folder.path} and train again from the start",
            )
        except NightrankError as error:
            failure = error
        except OSError as error:
            failure = InfrastructureError(
                f"the checkpoint of step {step} in {self._folder.path} cannot be read: {error}",
                "rerun the job",
            )
        if any(gather_json(self._collectives, failure is not None)) and self._is_replaced(step, text):
            return None
        raise_on_all_ranks(self._collectives, failure)
        return Position(**index["position"])


# The code below writes one checkpoint: copies the state to host memory, and writes the copy in a thread
# during training.
#
# On every rank, the thread writes the rank's tensors, and then a small JSON file that lists them. This JSON
# file is called the rank's part. The thread of rank 0 waits until the parts of all ranks exist. Then it
# publishes the checkpoint: it writes the index, a JSON file that lists the files of all ranks. Threads call
# no collectives, because all ranks must call collectives in the same order. At the next save, ranks exchange
# the errors of their threads (`Checkpoints.wait`).

# The first pause between two checks for the parts of other ranks. Each further pause is twice as long as the
# one before, because every check is a request to the object store.
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
        copies: dict[str, list[Tensor]] = {}
        devices = set()
        for (name, index), piece in _pieces(owned):
            copies.setdefault(name, []).append(self._copy((name, index), piece))
            if piece.is_cuda:
                devices.add(piece.device)
        for device in devices:
            torch.cuda.synchronize(device)
        return copies

    def missing_bytes(self, owned: OwnedState) -> int:
        """Returns how many bytes of host memory `take` would have to allocate for this state."""
        missing = [piece for key, piece in _pieces(owned) if self._buffer(key, piece) is None]
        return sum(_pinned_bytes(piece.nbytes) if piece.is_cuda else piece.nbytes for piece in missing)

    def _buffer(self, key: tuple[str, int], value: Tensor) -> Tensor | None:
        """Returns the host memory for a tensor; None if there is none with the tensor's shape and dtype."""
        buffer = self._buffers.get(key)
        fits = buffer is not None and buffer.shape == value.shape and buffer.dtype == value.dtype
        return buffer if fits else None

    def _copy(self, key: tuple[str, int], value: Tensor) -> Tensor:
        buffer = self._buffer(key, value)
        if buffer is None:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            self._buffers[key] = buffer
        return buffer.copy_(value, non_blocking=True)


def _pieces(owned: OwnedState) -> Iterator[tuple[tuple[str, int], Tensor]]:
    """Yields the tensors that this rank saves by key: a name, and an index among the tensors of this name."""
    for name, value in owned.equal.items():
        yield (name, 0), value
    for name, pieces in owned.rows.items():
        for index, piece in enumerate(pieces):
            yield (name, index), piece


def _pinned_bytes(size: int) -> int:
    """Returns how much memory torch allocates for a pinned tensor: the next power of two."""
    return 1 << (size - 1).bit_length() if size else 0


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
        stem: the start of this checkpoint's file names. No other attempt at this training run uses the same
            stem.
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
                f"rank 0 cannot find the files that ranks {self._missing(range(self._num_ranks))} wrote to "
                f"{self._folder}",
                "put the data lake on storage that all ranks share",
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
        except Exception as error:  # stored for `wait`, because nobody sees an error that ends a thread
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
            files.append(write_tensors(self._folder, f"{self._stem}.dense.safetensors", equal).to_json())
        if rows:
            file = f"{self._stem}.rows-{self._rank:05d}.safetensors"
            files.append(write_tensors(self._folder, file, rows).to_json())
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
        # On an object store, this attempt's index may have been readable for a moment (see `create_json`). A
        # process that has read this index may still need these files.
        if file_io.is_local(self._folder):
            for name in names:
                file_io.delete_file(f"{self._folder}/{name}")


# The code below lists the checkpoints in the folder of a training run, and deletes checkpoints and old files.

_INDEX = re.compile(r"step-(\d+)\.json")
_CHECKPOINT_FILE = re.compile(r"\.?step-\d+\.")

# A file that no index lists and that is older than this limit is deleted. No running attempt should need it,
# because writing a checkpoint takes less time. If writing ever takes longer, another attempt may delete its
# files too early. A resumed training run then uses the previous checkpoint.
_GRACE_S = 3600.0


class CheckpointFolder:
    """A folder of checkpoints, which several attempts at the same training run may use at the same time.

    Each complete checkpoint has an index, a JSON file that lists the checkpoint's other files.

    Args:
        path: path or URI of the folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def steps(self) -> list[int]:
        """Returns the step numbers of the checkpoints that have an index, newest first."""
        names = [info.base_name for info in file_io.list_files(self.path)]
        return sorted((int(match[1]) for name in names if (match := _INDEX.fullmatch(name))), reverse=True)

    def index_path(self, step: int) -> str:
        """Returns the path of a checkpoint's index."""
        return f"{self.path}/step-{step:012d}.json"

    def index_text(self, step: int) -> str | None:
        """Returns the text of a checkpoint's index; None if the index does not exist."""
        try:
            return file_io.read_text(self.index_path(step))
        except FileNotFoundError:
            return None
        except DataError:  # the index is not UTF-8; `_examine` reports the damage
            return "not UTF-8"

    def delete_all_but(self, keep: int, best_step: int | None = None) -> None:
        """Deletes all checkpoints, except the `keep` newest and the checkpoint of the step `best_step`."""
        for step in self.steps()[keep:]:
            if step != best_step:
                self._delete_checkpoint(step, self.index_text(step))

    def free_bytes(self) -> int | None:
        """Returns the free space of the disk that has this folder; None for an object store."""
        if not file_io.is_local(self.path):
            return None
        folder = Path(file_io.filesystem(self.path)[1])
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        return shutil.disk_usage(existing).free

    def delete_damaged(self, damaged: Mapping[int, str]) -> None:
        """Deletes damaged checkpoints, unless another attempt has replaced them.

        Args:
            damaged: maps the step of each damaged checkpoint to the text that the checkpoint's index had when
                the damage was found.
        """
        for step, text in damaged.items():
            if self.index_text(step) == text:
                self._delete_checkpoint(step, text)

    def delete_old_leftovers(self) -> None:
        """Deletes old checkpoint files that no index lists."""
        listed = self._listed_files()
        for info in file_io.list_files(self.path):
            if _CHECKPOINT_FILE.match(info.base_name) and info.base_name not in listed and _is_old(info):
                self._delete(info.base_name)

    def delete_all(self, attempt: str) -> None:
        """Deletes all checkpoints and the folder, but keeps files that another attempt is writing now.

        Args:
            attempt: the name of this attempt, which is part of the names of the attempt's files.
        """
        listed = self._listed_files()
        for info in file_io.list_files(self.path):
            name = info.base_name
            of_other_attempt = _CHECKPOINT_FILE.match(name) and f".{attempt}." not in name
            if name in listed or not of_other_attempt or _is_old(info):
                self._delete(name)
        file_io.delete_empty_folder(self.path)  # if another attempt still has files here, the folder is kept

    def _listed_files(self) -> set[str]:
        return {name for step in self.steps() for name in self._file_names(step, self.index_text(step))}

    def _file_names(self, step: int, text: str | None) -> list[str]:
        """Returns the names of a checkpoint's files, in the order in which they must be deleted.

        The index comes first, because readers ignore the other files once the index is deleted.
        """
        index = self.index_path(step).rsplit("/", 1)[1]
        try:
            names = [entry["name"] for entry in json.loads(text or "")["files"]]
            return [index, *(name for name in names if not file_io.leaves(name))]
        # The index is damaged, or another attempt has deleted it.
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return [index]

    def _delete_checkpoint(self, step: int, text: str | None) -> None:
        for name in self._file_names(step, text):
            self._delete(name)

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            file_io.delete_file(f"{self.path}/{name}")


def _is_old(info: fs.FileInfo) -> bool:
    return is_older(info, time.time() - _GRACE_S)
