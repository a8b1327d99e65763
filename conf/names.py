"""Rules for text in a configuration: names of folders and columns, paths, and the root of the lake.

A rule is a function that returns the text or raises ValueError, as pydantic's validators do.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from conf.printable import is_printable

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST_COLUMN = 128

# Schemes of a lake: storage.file_io can replace a file of theirs in one step.
LAKE_SCHEMES = ("", "file", "s3", "s3a")
# Schemes of raw data. HDFS is read and never written.
RAW_SCHEMES = (*LAKE_SCHEMES, "hdfs")


def scheme_of(path: str) -> str:
    """`s3a` of s3a://bucket/key; empty for a plain path."""
    return path.split("://", 1)[0] if "://" in path else ""


def folder_name(name: str) -> str:
    """A name that becomes one folder of the lake."""
    if not _FOLDER.fullmatch(name):
        raise ValueError(
            "it becomes a folder of the lake: write 1 to 100 letters (A to Z), digits and . _ - "
            "and begin with a letter or digit"
        )
    return name


def column_name(name: str) -> str:
    """A name of a column or feature, which may enter the name of a file."""
    if not 1 <= len(name) <= _LONGEST_COLUMN or "/" in name or "\\" in name or not is_printable(name):
        raise ValueError(
            f"a column name has 1 to {_LONGEST_COLUMN} characters, "
            "none of them / or \\ or a control character; "
            "give the name in the file as `source`"
        )
    return name


def plain_text(text: str) -> str:
    """A text without control characters, which is not empty."""
    if not text or not is_printable(text):
        raise ValueError("it must not be empty and must hold no control characters")
    return text


def lake_root(root: str) -> str:
    """The root of a lake: a local path or a URI of a scheme that a lake can have."""
    scheme = scheme_of(plain_text(root))
    if scheme == "hdfs":
        raise ValueError(
            "a lake cannot lie on HDFS, where its manifests would not be replaced in one step; "
            "keep it on s3a:// or a path that every node mounts, and name hdfs:// in log.path or data"
        )
    return _require_scheme(root, LAKE_SCHEMES)


def raw_location(path: str) -> str:
    """A path or URI that is read."""
    return _require_scheme(plain_text(path), RAW_SCHEMES)


def _require_scheme(path: str, known: tuple[str, ...]) -> str:
    if scheme_of(path) not in known:
        schemes = ", ".join(f"{scheme}://" for scheme in known if scheme)
        raise ValueError(
            f"{scheme_of(path)}:// is not supported: give a path or a URI that begins with {schemes}"
        )
    return path


FolderName = Annotated[str, AfterValidator(folder_name)]
ColumnName = Annotated[str, AfterValidator(column_name)]
PlainText = Annotated[str, AfterValidator(plain_text)]
LakeRoot = Annotated[str, AfterValidator(lake_root)]
RawLocation = Annotated[str, AfterValidator(raw_location)]
