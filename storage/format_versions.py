"""Versions of the formats on disk. Each JSON file contains its version, and readers refuse newer versions.

The version of a format is increased if readers of the previous version would misread the file. It is not
increased for an additional key that these readers can ignore. Release 0.1.0 wrote no versions: a file without
the key `format_version` has version 1. Readers accept every version up to the current one; `jobs/migrate.py`
rewrites older files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from conf.errors import DataError
from storage import file_io

KEY = "format_version"
FIRST = 1
Loaded = TypeVar("Loaded")
REPAIR = "delete the damaged file and rerun the job that writes it"


class FileValues(dict[str, Any]):
    """The values of a JSON file. Reading a key that the file lacks raises a DataError that names the file."""

    path, format_name = "", ""

    @classmethod
    def of_file(cls, values: Mapping[str, Any], path: str, format_name: str) -> FileValues:
        """Wraps the parsed values of a JSON file, for error messages that name the file."""
        of_file = cls(values)
        of_file.path, of_file.format_name = path, format_name
        return of_file

    def __missing__(self, key: str) -> Any:
        """Raises the DataError for a key that the file lacks."""
        raise DataError(f"{self.path} is not a valid {self.format_name}: it lacks the key {key!r}", REPAIR)


@dataclass(frozen=True)
class Format:
    """The format of one kind of file.

    Attributes:
        name: name of this kind of file, for error messages.
        version: the version that this release writes, and the newest that it reads.
    """

    name: str
    version: int = FIRST

    def stamp(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Adds the version that this release writes to the values of a file."""
        return {KEY: self.version, **values}

    def version_of(self, values: Any, path: str) -> int:
        """Returns the version of a file's parsed JSON.

        Raises:
            DataError: the file contains no JSON object, or its version is not a positive integer.
        """
        if not isinstance(values, Mapping):
            raise DataError(
                f"{path} is not a valid {self.name}: it contains a JSON {type(values).__name__}, "
                "not an object",
                REPAIR,
            )
        version = values.get(KEY, FIRST)
        if not isinstance(version, int) or isinstance(version, bool) or version < FIRST:
            raise DataError(
                f"{path} is not a valid {self.name}: {KEY} is {version!r}, not a positive integer",
                REPAIR,
            )
        return version

    def check(self, values: Any, path: str) -> FileValues:
        """Returns the values of a file without its version, if this release can read that version.

        Raises:
            DataError: the file is damaged, or a newer release wrote it.
        """
        version = self.version_of(values, path)
        if version > self.version:
            raise DataError(
                f"{path} is a {self.name} of format version {version}; "
                f"this release reads up to version {self.version}",
                "use the release that wrote the file, or a newer one: do not use an older release with this "
                "lake",
            )
        known = {key: value for key, value in values.items() if key != KEY}
        return FileValues.of_file(known, path, self.name)

    def load(self, path: str, convert: Callable[[dict[str, Any]], Loaded]) -> Loaded:
        """Reads a file, and converts its values with `convert`.

        Raises:
            FileNotFoundError: there is no such file.
            DataError: the file is damaged, a newer release wrote it, or `convert` finds that a key is missing
                or that a value has the wrong type.
        """
        values = self.check(file_io.read_json(path), path)
        with self.parsing(path):
            return convert(values)

    @contextmanager
    def parsing(self, path: str, remedy: str = REPAIR) -> Iterator[None]:
        """Turns errors of a `with` block, which converts a file's values to objects, into a DataError.

        Raises:
            DataError: a key is missing, or a value has the wrong type.
        """
        try:
            yield
        except KeyError as error:
            raise DataError(f"{path} is not a valid {self.name}: it lacks the key {error}", remedy) from error
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(
                f"{path} is not a valid {self.name}: a value has the wrong type or is out of range: {error}",
                remedy,
            ) from error


def typed(values: Mapping[str, Any], **types: type | tuple[type, ...]) -> None:
    """Checks that the keys of `types` exist in a file, and that their values have these types.

    Args:
        values: the parsed JSON.
        types: the types that the value of each key may have.

    Raises:
        KeyError: a key is missing.
        TypeError: a value has another type.
    """
    for key, expected in types.items():
        if not isinstance(values[key], expected):
            raise TypeError(f"{key} is {values[key]!r:.100}")


def require_names(*names: str | None) -> None:
    """Checks versions, dates and similar names, from which paths in the lake are made. Accepts None.

    Raises:
        TypeError: a name is not a string.
        ValueError: a path with this name would be in another folder.
    """
    for name in names:
        if name is not None and ("/" in name or name in (".", "..") or file_io.leaves(name or "_")):
            raise ValueError(f"{name!r:.100} is not the name of a file or folder")


# Manifests: since version 2, data files are outside the partition's folder, because other tools list this
# folder. Version 3 adds a digest to the entry of each data file, and version 4 adds a checksum of the
# manifest (storage.file_io). Readers of earlier versions reject these unknown keys. Some other formats have
# version 2 because they also got this checksum. The model description has version 2 because it now contains
# the SHA-256 of the model's files, and readers of version 1 reject this unknown key.
MANIFEST = Format("manifest", 4)
DATASET = Format("data manifest")
WORKFLOW = Format("workflow")
FEATURE_SPEC = Format("feature spec", 2)
MODEL = Format("model description", 2)
PRUNED_TRAINING = Format("record of a pruned training")
CHECKPOINT = Format("checkpoint index")
TRAINED_VERSION = Format("record of a trained version")
PROMOTION = Format("promotion")
BLEND = Format("blend", 2)
INTERVENTION = Format("record of interventions")
EXPERIMENT_STOP = Format("record of stopped experiments")
RUN_RECORD = Format("run record")
ERASED_USERS = Format("list of erased users")
ERASURE = Format("record of an erasure", 2)

ALL = (
    MANIFEST,
    DATASET,
    WORKFLOW,
    FEATURE_SPEC,
    MODEL,
    PRUNED_TRAINING,
    CHECKPOINT,
    TRAINED_VERSION,
    PROMOTION,
    BLEND,
    INTERVENTION,
    EXPERIMENT_STOP,
    RUN_RECORD,
    ERASED_USERS,
    ERASURE,
)
