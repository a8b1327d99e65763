"""Saves and restores the checkpoints of a training. Any number of ranks can restore a checkpoint.

    step-<n>.json                               the index, written last: without it there is no checkpoint
    step-<n>.<attempt>.dense.safetensors        tensors that are equal on all ranks, written by rank 0
    step-<n>.<attempt>.rows-<rank>.safetensors  the table rows of a rank
    step-<n>.<attempt>.part-<rank>.json         lists the files of a rank, until the index lists them

All ranks must be able to read and write the folder of these files, so the folder must be on a shared disk or
an object store. At most one checkpoint is written at a time. Each rank needs host memory for a copy of the
tensors that it writes.

Another attempt at the same training may run at the same time and use the same folder. All attempts share the
checkpoints that have an index. Each attempt may resume from such a checkpoint, and may delete it when there
are newer checkpoints. A file that no index lists belongs to the attempt whose name is part of the file name.
Other attempts delete such a file only if it is too old to be in use.
"""

from __future__ import annotations

import json
import logging
import socket
import time
import uuid
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from conf.errors import DataError, InfrastructureError, NightrankError
from conf.host_memory import available_memory
from storage import format_versions
from training.checkpoints.blocks import StoredBlock, owned_state
from training.checkpoints.checkpoint_folder import CheckpointFolder
from training.checkpoints.checkpoint_writer import (
    CheckpointContents,
    CheckpointWriter,
    HostCopy,
)
from training.checkpoints.rank_agreement import gather_json, raise_on_all_ranks
from training.checkpoints.stateful import Stateful
from training.checkpoints.stored import StateMismatchError, StoredState
from training.distributed.collectives import Collectives
from training.registry.written_file import FileEntry, damage

log = logging.getLogger("nightrank.training")

# The first is how long rank 0 waits for files that other ranks have reported as written. The second is how
# long it waits after an error, when other ranks may have ended.
_PUBLISH_TIMEOUT_S = 60.0
_EXIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Position:
    """The progress of a training when a checkpoint is saved.

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

        The wait has a short limit, because after an error the other ranks may have ended.
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
        """Returns why there is no space for another checkpoint; None if there is. All ranks get the same.

        The copy in host memory must leave a fifth of the available memory of each host. Ranks on one host
        share its memory. The disk must have space for the files of all ranks.
        """
        size = owned_state(trainer.state(), trainer.row_state(), leads=self._leads).bytes
        missing = max(size - self._host_copy.bytes, 0)  # a copy reuses the memory of the copy before
        free = self._folder.free_bytes() if self._leads else None
        facts = gather_json(
            self._collectives, [socket.gethostname(), missing, available_memory(), size, free]
        )
        for host in dict.fromkeys(fact[0] for fact in facts):
            needed = sum(fact[1] for fact in facts if fact[0] == host)
            available = min(fact[2] for fact in facts if fact[0] == host)
            if needed > 0.8 * available:
                return (
                    f"it needs {needed >> 20} MiB of memory on {host}, where {available >> 20} MiB are free"
                )
        total, free = sum(fact[3] for fact in facts), facts[0][4]
        if free is not None and total > free:
            return f"it needs {total >> 20} MiB in {self._folder.path}, where {free >> 20} MiB are free"
        return None

    def save(self, trainer: Stateful, position: Position, best_step: int | None = None) -> None:
        """Waits for the previous checkpoint, copies the state, and starts a thread that writes the copy.

        Args:
            trainer: the state to save.
            position: the progress of the training.
            best_step: a step whose checkpoint is not deleted; None if there is none.

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

        If there is no complete checkpoint, it returns None and changes nothing.

        The placement of rows and the number of ranks may differ from those at the time of saving. Damaged
        checkpoints are skipped with a warning and deleted. Old files of killed attempts are deleted too.

        Raises:
            DataError: a newer release wrote the newest checkpoint, or the checkpoint belongs to another
                training. Raised on all ranks.
            InfrastructureError: another attempt deleted the checkpoints while they were read.
        """
        damaged: dict[int, str] = {}
        position: Position | None = None
        changed = False  # True if a checkpoint was deleted while it was being loaded
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
                        "the checkpoint of step %d is damaged, looking for one before: %s", step, problem
                    )
        if position is None and changed:
            raise InfrastructureError(
                f"another attempt at this training deleted the checkpoints in {self._folder.path} while they "
                "were read",
                "rerun: that attempt has newer checkpoints, or has published the model",
            )
        if self._leads:
            self._folder.delete_damaged(damaged)
            self._folder.delete_old_leftovers()
        gather_json(self._collectives, None)  # a barrier: no rank writes before the deletions are done
        if position is not None:
            log.info("resuming after step %d", position.step)
        return position

    def load(self, trainer: Stateful, step: int) -> bool:
        """Loads the checkpoint of a step into a trainer. Returns False if it is missing or damaged.

        In this case, a warning is logged, and the trainer is unchanged. All ranks must call this method, and
        get the same result. No checkpoint may be in progress (`wait`).

        Raises:
            DataError: the checkpoint belongs to another training. Raised on all ranks.
        """
        text = gather_json(self._collectives, self._folder.index_text(step) if self._leads else None)[0]
        if text is None:
            return False
        problem = next(filter(None, gather_json(self._collectives, self._examine(step, text))), None)
        if problem is not None and self._leads:
            log.warning("the checkpoint of step %d is damaged: %s", step, problem)
        return problem is None and self._load(step, text, trainer) is not None

    def delete(self) -> None:
        """Deletes the checkpoints of a complete training, but not files that another attempt is writing."""
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
            # None: another attempt has just deleted it, so a newer checkpoint or the model exists.
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
            values = json.loads(text)
        except ValueError:  # damaged; `_examine` reports it
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
            index = json.loads(text)
            entries = [FileEntry(**entry) for entry in index["files"]]
            Position(**index["position"])
            self._stored_state(index)
        except (KeyError, TypeError, ValueError) as error:
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
        return StoredState(self._folder.path, {entry["name"]: "" for entry in index["files"]}, rows)

    def _load(self, step: int, text: str, trainer: Stateful) -> Position | None:
        """Loads a checkpoint into the trainer; returns None if another attempt deleted it in the meantime."""
        index = json.loads(text)
        failure: NightrankError | None = None
        try:
            self._stored_state(index).load(trainer.state(), trainer.row_state())
        except StateMismatchError as error:
            failure = DataError(
                f"the checkpoint of step {step} belongs to another training: {error}",
                f"delete {self._folder.path} and train again from the start",
            )
        except NightrankError as error:
            failure = error
        except OSError as error:
            failure = InfrastructureError(
                f"the checkpoint of step {step} in {self._folder.path} cannot be read: {error}", "rerun"
            )
        if any(gather_json(self._collectives, failure is not None)) and self._is_replaced(step, text):
            return None
        raise_on_all_ranks(self._collectives, failure)
        return Position(**index["position"])
