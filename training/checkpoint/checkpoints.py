"""The checkpoints of one training, written by all its ranks, read by any number of ranks.

    step-<n>.json                               the index, written last: a checkpoint without it does not exist
    step-<n>.<attempt>.dense.safetensors        what is equal on all ranks, by rank 0
    step-<n>.<attempt>.rows-<rank>.safetensors  the rows that a rank writes
    step-<n>.<attempt>.part-<rank>.json         what a rank wrote, until the index says it

The folder must be one that all ranks see, on a shared disk or an object store. At most one checkpoint is being written at
a time; it takes as much host memory as the rank's part of the state.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from conf import format_versions, storage
from conf.errors import DataError, NightrankError
from training.checkpoint.blocks import StoredBlock, owned
from training.checkpoint.model import Trained
from training.checkpoint.sharing import raise_together, share
from training.checkpoint.stored import Misfit, StoredState
from training.checkpoint.tensor_file import FileEntry, damage
from training.checkpoint.writing import Contents, HostCopy, Writing
from training.collectives import Collectives

log = logging.getLogger("nightrank.training")

_INDEX = re.compile(r"step-(\d+)\.json")
# How long rank 0 looks for files that other ranks have said are written, and for those of ranks that are gone.
_PATIENCE_S = 60.0
_PARTING_S = 5.0


@dataclass(frozen=True)
class Position:
    """Where a training stands: steps done, seconds they took, log entries so far."""

    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Checkpoints:
    """Every rank makes one, and calls the same methods in the same order; leaving its context waits for the disk.

    Args:
        folder: path or URI, made when it is first needed.
        keep: so many are kept, the newest.
    """

    def __init__(self, folder: str, collectives: Collectives, keep: int = 2) -> None:
        self._folder = folder
        self._collectives = collectives
        self._keep = keep
        self._attempt = share(collectives, uuid.uuid4().hex[:8])[0]
        self._host = HostCopy()
        self._writing: Writing | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        """Lets a checkpoint that is being written become complete, also after an error: ranks may have died by then."""
        writing, self._writing = self._writing, None
        if writing is not None:
            error = writing.written() or writing.published(_PARTING_S)
            if error is not None:
                log.warning("the last checkpoint is not complete: %s", error.problem)
            writing.give_up()

    @property
    def _leads(self) -> bool:
        return self._collectives.rank == 0

    def save(self, trainer: Trained, position: Position) -> None:
        """Copies the state, after the checkpoint before is complete, and lets a thread write it.

        Raises:
            InfrastructureError, DataError: on all ranks, what went wrong with the checkpoint before on any.
        """
        self.wait()
        began = time.perf_counter()
        mine = owned(trainer.state(), trainer.row_state(), leads=self._leads)
        tensors = self._host.take(mine)
        about = {"position": {**asdict(position), "history": list(position.history)}}
        contents = Contents(position.step, tensors, mine, about, time.perf_counter() - began)
        name = f"step-{position.step:012d}"
        self._writing = Writing(
            self._folder,
            f"{name}.{self._attempt}",
            f"{name}.json",
            self._collectives.rank,
            self._collectives.size,
            contents,
            self._delete_old,
        )

    def wait(self) -> None:
        """Returns when the last checkpoint is complete.

        Raises:
            InfrastructureError, DataError: on all ranks, what went wrong with it on any.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            raise_together(self._collectives, writing.written())
            raise_together(self._collectives, writing.published(_PATIENCE_S) if self._leads else None)
        finally:
            writing.give_up()

    def restore(self, trainer: Trained) -> Position | None:
        """Fills a trainer from the newest whole checkpoint; None, and nothing is touched, where there is none.

        The placement of rows and the number of ranks may be others than when it was saved. A damaged one is passed over,
        with a warning, and deleted with all that killed attempts left.

        Raises:
            DataError: on all ranks, a newer release wrote the newest checkpoint, or it is of another training.
        """
        damaged: list[int] = []
        found: Position | None = None
        for step in share(self._collectives, self._steps() if self._leads else [])[0]:
            raise_together(self._collectives, self._refusal(step))
            problems = [each for each in share(self._collectives, self._examine(step)) if each]
            if not problems:
                found = self._load(step, trainer)
                break
            damaged.append(step)
            if self._leads:
                log.warning(
                    "the checkpoint of step %d is damaged, looking for one before: %s", step, problems[0]
                )
        if self._leads:
            self._clean(damaged)
        share(self._collectives, None)  # nobody writes before all is clean
        if found is not None:
            log.info("resuming after step %d", found.step)
        return found

    def delete(self) -> None:
        """Removes the folder's files: the training they belong to is complete."""
        if self._leads:
            for info in storage.list_files(self._folder):
                self._delete(info.base_name)
            files, inner = storage.filesystem(self._folder)
            if storage.is_local(self._folder) and storage.exists(self._folder):
                files.delete_dir(inner)

    def _steps(self) -> list[int]:
        """Of the checkpoints in the folder, newest first."""
        names = [info.base_name for info in storage.list_files(self._folder)]
        return sorted((int(match[1]) for name in names if (match := _INDEX.fullmatch(name))), reverse=True)

    def _index(self, step: int) -> str:
        return f"{self._folder}/step-{step:012d}.json"

    def _refusal(self, step: int) -> DataError | None:
        """The error of a checkpoint that a newer release wrote: it is whole, and must not be deleted as damaged."""
        path = self._index(step)
        try:
            values = storage.read_json(path)
        except (DataError, FileNotFoundError):  # damaged: `_examine` says how
            return None
        if not isinstance(values, dict):
            return None
        try:
            format_versions.CHECKPOINT.check(values, path)
        except DataError as error:
            return error
        return None

    def _examine(self, step: int) -> str | None:
        """What is wrong with a checkpoint, as far as this rank looks: ranks share its files among them."""
        try:
            index = storage.read_json(self._index(step))
            entries = [FileEntry(**each) for each in index["files"]]
            Position(**index["position"])
            self._state(index)
        except (DataError, KeyError, TypeError, ValueError, FileNotFoundError) as error:
            return f"{self._index(step)} is no index of a checkpoint: {error}"
        for entry in entries[self._collectives.rank :: self._collectives.size]:
            problem = damage(self._folder, entry)
            if problem:
                return problem
        return None

    def _state(self, index: dict[str, Any]) -> StoredState:
        rows = {
            name: [StoredBlock.from_json(each) for each in blocks] for name, blocks in index["rows"].items()
        }
        return StoredState(self._folder, {each["name"]: "" for each in index["files"]}, rows)

    def _load(self, step: int, trainer: Trained) -> Position:
        index = storage.read_json(self._index(step))
        failed: NightrankError | None = None
        try:
            self._state(index).load(trainer.state(), trainer.row_state())
        except Misfit as error:
            failed = DataError(
                f"the checkpoint of step {step} is of another training: {error}",
                f"delete {self._folder} and train again from the start",
            )
        except NightrankError as error:
            failed = error
        raise_together(self._collectives, failed)
        return Position(**index["position"])

    def _clean(self, damaged: Sequence[int]) -> None:
        """Deletes damaged checkpoints, and files of ours that no index names."""
        for step in damaged:
            self._delete(self._index(step).rsplit("/", 1)[1])
        named = {name for step in self._steps() for name in self._names(step)}
        for info in storage.list_files(self._folder):
            if re.match(r"\.?step-\d+\.", info.base_name) and info.base_name not in named:
                self._delete(info.base_name)

    def _names(self, step: int) -> list[str]:
        """The files of a checkpoint, its index first."""
        path = self._index(step)
        own = path.rsplit("/", 1)[1]
        try:
            return [own, *(each["name"] for each in storage.read_json(path)["files"])]
        except (DataError, KeyError, TypeError):  # damaged, and older than the one that was restored
            return [own]

    def _delete_old(self) -> None:
        """Keeps the newest."""
        for step in self._steps()[self._keep :]:
            for name in self._names(step):
                self._delete(name)

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            storage.delete_file(f"{self._folder}/{name}")
