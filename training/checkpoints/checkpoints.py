"""The checkpoints of one training, written by all its ranks, read by any number of ranks.

    step-<n>.json                               the index, written last: a checkpoint without it does not exist
    step-<n>.<attempt>.dense.safetensors        what is equal on all ranks, by rank 0
    step-<n>.<attempt>.rows-<rank>.safetensors  the rows that a rank writes
    step-<n>.<attempt>.part-<rank>.json         what a rank wrote, until the index says it

The folder must be one that all ranks see, on a shared disk or an object store. At most one checkpoint is being written at
a time; it takes as much host memory as the rank's part of the state.

Another attempt at the same training may be running, and uses the same folder. Checkpoints with an index belong to all
attempts: any of them may resume from one, and delete it when newer ones are there. Files without an index belong to the
attempt in their names; others delete them only when they are too old to be still written.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import fs

from conf.errors import DataError, InfrastructureError, NightrankError
from storage import file_io, format_versions
from training.checkpoints.blocks import StoredBlock, owned
from training.checkpoints.checkpoint_writer import Contents, HostCopy, Writing
from training.checkpoints.model import Trained
from training.checkpoints.rank_agreement import gather_json, raise_on_all_ranks
from training.checkpoints.stored import StateMismatch, StoredState
from training.distributed.collectives import Collectives
from training.registry.leftovers import is_older
from training.registry.written_file import FileEntry, damage

log = logging.getLogger("nightrank.training")

_INDEX = re.compile(r"step-(\d+)\.json")
_FILE = re.compile(r"\.?step-\d+\.")  # anything that belongs to a checkpoint
# How long rank 0 looks for files that other ranks have said are written, and for those of ranks that are gone.
_PATIENCE_S = 60.0
_PARTING_S = 5.0
# From the first file of a checkpoint to its index takes less. If it ever takes longer, the checkpoint may be damaged, and
# the one before is used.
_GRACE_S = 3600.0


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
        self._attempt = gather_json(collectives, uuid.uuid4().hex[:8])[0]
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
            raise_on_all_ranks(self._collectives, writing.written())
            raise_on_all_ranks(self._collectives, writing.published(_PATIENCE_S) if self._leads else None)
        finally:
            writing.give_up()

    def restore(self, trainer: Trained) -> Position | None:
        """Fills a trainer from the newest whole checkpoint; None, and nothing is touched, where there is none.

        The placement of rows and the number of ranks may be others than when it was saved. A damaged one is passed over,
        with a warning, and deleted with what killed attempts left long ago.

        Raises:
            DataError: on all ranks, a newer release wrote the newest checkpoint, or it is of another training.
            InfrastructureError: another attempt deleted the checkpoints while they were read.
        """
        damaged: dict[int, str] = {}
        position: Position | None = None
        touched = False
        while position is None and (found := self._newest_but(damaged)) is not None:
            step, text = found
            raise_on_all_ranks(self._collectives, self._refusal(step, text))
            problem = next(filter(None, gather_json(self._collectives, self._examine(step, text))), None)
            if problem is None:
                position = self._load(step, text, trainer)
                touched = touched or position is None
            elif not self._is_replaced(step, text):
                damaged[step] = text
                if self._leads:
                    log.warning(
                        "the checkpoint of step %d is damaged, looking for one before: %s", step, problem
                    )
        if position is None and touched:
            raise InfrastructureError(
                f"another attempt at this training deleted the checkpoints in {self._folder} while they were read",
                "rerun: that attempt has newer checkpoints, or has published the model",
            )
        if self._leads:
            self._clean(damaged)
        gather_json(self._collectives, None)  # nobody writes before all is clean
        if position is not None:
            log.info("resuming after step %d", position.step)
        return position

    def delete(self) -> None:
        """Deletes the checkpoints: the training they belong to is complete. What another attempt is writing now stays."""
        if not self._leads:
            return
        named = {name for step in self._steps() for name in self._names(step, self._text(step))}
        for info in file_io.list_files(self._folder):
            of_others = _FILE.match(info.base_name) and f".{self._attempt}." not in info.base_name
            if info.base_name in named or not of_others or self._is_old(info):
                self._delete(info.base_name)
        if file_io.is_local(self._folder):
            with suppress(OSError):  # another attempt's files are there
                Path(file_io.filesystem(self._folder)[1]).rmdir()

    def _newest_but(self, damaged: Collection[int]) -> tuple[int, str] | None:
        """(step, text of its index) of the newest checkpoint that is not one of these; the same on all ranks."""
        found: tuple[int, str] | None = None
        while self._leads and found is None:
            step = next((each for each in self._steps() if each not in damaged), None)
            if step is None:
                break
            text = self._text(
                step
            )  # None: another attempt has just deleted it, and has a newer one or the model
            found = None if text is None else (step, text)
        told = gather_json(self._collectives, found)[0]
        return None if told is None else (int(told[0]), str(told[1]))

    def _is_replaced(self, step: int, text: str) -> bool:
        """Whether another attempt has deleted or replaced a checkpoint since its index was read. A collective."""
        return bool(gather_json(self._collectives, self._leads and self._text(step) != text)[0])

    def _steps(self) -> list[int]:
        """Of the checkpoints in the folder, newest first."""
        names = [info.base_name for info in file_io.list_files(self._folder)]
        return sorted((int(match[1]) for name in names if (match := _INDEX.fullmatch(name))), reverse=True)

    def _index(self, step: int) -> str:
        return f"{self._folder}/step-{step:012d}.json"

    def _refusal(self, step: int, text: str) -> DataError | None:
        """The error of a checkpoint that a newer release wrote: it is whole, and must not be deleted as damaged."""
        try:
            values = json.loads(text)
        except ValueError:  # damaged: `_examine` says how
            return None
        if not isinstance(values, dict):
            return None
        try:
            format_versions.CHECKPOINT.check(values, self._index(step))
        except DataError as error:
            return error
        return None

    def _text(self, step: int) -> str | None:
        """The text of a checkpoint's index; None where there is none."""
        try:
            return file_io.read_text(self._index(step))
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            return "not UTF-8"

    def _examine(self, step: int, text: str) -> str | None:
        """What is wrong with a checkpoint, as far as this rank looks: ranks share its files among them."""
        try:
            index = json.loads(text)
            entries = [FileEntry(**each) for each in index["files"]]
            Position(**index["position"])
            self._state(index)
        except (KeyError, TypeError, ValueError) as error:
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

    def _load(self, step: int, text: str, trainer: Trained) -> Position | None:
        """Fills the trainer; None where another attempt deleted the checkpoint meanwhile."""
        index = json.loads(text)
        failed: NightrankError | None = None
        try:
            self._state(index).load(trainer.state(), trainer.row_state())
        except StateMismatch as error:
            failed = DataError(
                f"the checkpoint of step {step} is of another training: {error}",
                f"delete {self._folder} and train again from the start",
            )
        except NightrankError as error:
            failed = error
        except OSError as error:
            failed = InfrastructureError(
                f"the checkpoint of step {step} in {self._folder} cannot be read: {error}", "rerun"
            )
        if any(gather_json(self._collectives, failed is not None)) and self._is_replaced(step, text):
            return None
        raise_on_all_ranks(self._collectives, failed)
        return Position(**index["position"])

    def _clean(self, damaged: Mapping[int, str]) -> None:
        """Deletes damaged checkpoints, and old files that no index names."""
        for step, text in damaged.items():
            if self._text(step) == text:
                for name in self._names(step, text):
                    self._delete(name)
        named = {name for step in self._steps() for name in self._names(step, self._text(step))}
        for info in file_io.list_files(self._folder):
            if _FILE.match(info.base_name) and info.base_name not in named and self._is_old(info):
                self._delete(info.base_name)

    def _names(self, step: int, text: str | None) -> list[str]:
        """The files of a checkpoint, its index first: without the index, readers do not look for the others."""
        own = self._index(step).rsplit("/", 1)[1]
        try:
            return [own, *(each["name"] for each in json.loads(text or "")["files"])]
        except (KeyError, TypeError, ValueError):  # damaged, or deleted by another attempt
            return [own]

    def _delete_old(self) -> None:
        """Keeps the newest."""
        for step in self._steps()[self._keep :]:
            for name in self._names(step, self._text(step)):
                self._delete(name)

    def _is_old(self, info: fs.FileInfo) -> bool:
        return is_older(info, time.time() - _GRACE_S)

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            file_io.delete_file(f"{self._folder}/{name}")
