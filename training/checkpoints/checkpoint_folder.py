"""Lists the checkpoints in the folder of a training, and deletes checkpoints and old files."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pyarrow import fs

from storage import file_io
from training.registry.training_leftovers import is_older

_INDEX = re.compile(r"step-(\d+)\.json")
_CHECKPOINT_FILE = re.compile(r"\.?step-\d+\.")
# Files that no index lists and that are older than this do not belong to a running attempt, because writing a
# checkpoint takes less time. If it ever takes longer, its files may be deleted too early. Then the previous
# checkpoint is used.
_GRACE_S = 3600.0


class CheckpointFolder:
    """A folder of checkpoints, which several attempts at the same training may use at the same time.

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
        except UnicodeDecodeError:
            return "not UTF-8"

    def delete_all_but(self, keep: int, best_step: int | None = None) -> None:
        """Deletes all checkpoints except the `keep` newest checkpoints, and that of the step `best_step`."""
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
        if file_io.is_local(self.path):
            with suppress(OSError):  # the folder still has another attempt's files
                Path(file_io.filesystem(self.path)[1]).rmdir()

    def _listed_files(self) -> set[str]:
        return {name for step in self.steps() for name in self._file_names(step, self.index_text(step))}

    def _file_names(self, step: int, text: str | None) -> list[str]:
        """Returns the names of a checkpoint's files, in the order in which they must be deleted.

        The index comes first, because readers ignore the other files once the index is deleted.
        """
        index = self.index_path(step).rsplit("/", 1)[1]
        try:
            return [index, *(entry["name"] for entry in json.loads(text or "")["files"])]
        except (KeyError, TypeError, ValueError):  # damaged, or deleted by another attempt
            return [index]

    def _delete_checkpoint(self, step: int, text: str | None) -> None:
        for name in self._file_names(step, text):
            self._delete(name)

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            file_io.delete_file(f"{self.path}/{name}")


def _is_old(info: fs.FileInfo) -> bool:
    return is_older(info, time.time() - _GRACE_S)
