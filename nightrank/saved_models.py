"""Writes models to a folder in the format of a lake, and finds models in such a folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyarrow import fs

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.names import scheme_of
from scoring.model.model_info import ModelInfo, read_model_info
from storage import file_io, format_versions
from storage.paths import LakePaths
from training.registry.model_json import MODEL_JSON, is_complete, is_described, names_of
from training.registry.versions import model_path

_METRICS = ("auc", "log_loss", "normalized_entropy")


def private_folder() -> str:
    """Creates a folder for temporary files that only the user of this process can read. Returns its path.

    Raises:
        InfrastructureError: the folder cannot be created.
    """
    try:
        return tempfile.mkdtemp(prefix="nightrank-")
    except OSError as error:
        raise InfrastructureError(
            f"cannot make a temporary folder: {error}",
            "free disk space, or set TMPDIR to a folder that you can write",
        ) from error


def delete_folder(folder: str) -> None:
    """Deletes a folder. Errors are ignored."""
    shutil.rmtree(folder, ignore_errors=True)


def delete_with(owner: object, folder: str) -> None:
    """Deletes a folder when `owner` is freed, or when this process ends normally.

    A forked process does not delete the folder of its parent.
    """
    weakref.finalize(owner, _delete_in, os.getpid(), folder)


def _delete_in(process: int, folder: str) -> None:
    if os.getpid() == process:
        delete_folder(folder)


def lake_at(folder: str | os.PathLike[str]) -> LakePaths:
    """Returns the lake in a folder or URI. A relative path is made absolute.

    So objects that store the path stay valid in other processes, and after a change of the working directory.
    """
    path = os.fspath(folder)
    return LakePaths(os.path.abspath(path) if path and not scheme_of(path) else path)


def read_files(info: ModelInfo) -> dict[str, bytes]:
    """Maps the name of each file of a model in a local folder to its content.

    Raises:
        DataError: a file is missing.
        InfrastructureError: a file cannot be read.
    """
    folder = Path(info.path)
    try:
        return {name: (folder / name).read_bytes() for name in (*names_of(info.description), MODEL_JSON)}
    except FileNotFoundError as error:
        raise DataError(
            f"{error.filename} is missing: the temporary files of model {info.version} were deleted",
            "train the model again, and keep it with `save`",
        ) from error
    except OSError as error:
        raise InfrastructureError(
            f"cannot read {error.filename}: {error.strerror}", "check the disk and permissions"
        ) from error


def write_files(files: Mapping[str, bytes], lake: LakePaths, name: str, version: str) -> ModelInfo:
    """Writes the result of `read_files` to a lake on a local disk. Returns the model in that lake.

    Raises:
        InfrastructureError: a file cannot be written.
    """
    folder = Path(model_path(lake, name, version))
    try:
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_bytes(content)
    except OSError as error:
        raise InfrastructureError(
            f"cannot write the files of model {version} to {folder}: {error}",
            "free disk space, or set TMPDIR to a folder that you can write",
        ) from error
    return read_model_info(str(folder))


def copy_model(info: ModelInfo, lake: LakePaths) -> None:
    """Copies a model to a lake, if it is not there yet. Writes its file model.json last.

    Raises:
        DataError: a file of the model is missing.
        InfrastructureError: a file cannot be read or written.
    """
    path = model_path(lake, str(info.description["name"]), info.version)
    if is_complete(path):
        return
    for name in sorted(names_of(info.description)):
        _copy(f"{info.path}/{name}", f"{path}/{name}")
    file_io.replace_json(f"{path}/{MODEL_JSON}", format_versions.MODEL.stamp(info.description))


def _copy(source: str, target: str) -> None:
    files, inner = file_io.filesystem(source)
    others, target_inner = file_io.filesystem(target)
    try:
        if file_io.is_local(target):
            others.create_dir(target_inner.rsplit("/", 1)[0], recursive=True)
        fs.copy_files(inner, target_inner, source_filesystem=files, destination_filesystem=others)
    except FileNotFoundError as error:
        raise DataError(
            f"{source} is missing, although model.json names it", "train the model again"
        ) from error
    except OSError as error:
        raise InfrastructureError(
            f"cannot copy {source} to {target}: {error}", "check disk space and permissions"
        ) from error


def find_model(lake: LakePaths, version: str | None) -> ModelInfo:
    """Returns the model with a version, or the only model, in a folder in the format of a lake.

    Raises:
        ConfigError: the version is None, and there are several models.
        DataError: the model does not exist.
    """
    paths = [
        path
        for name in _folders(lake.models("").rstrip("/"))
        for path in _folders(name)
        if is_described(path) and version in (None, path.rsplit("/", 1)[1])
    ]
    if not paths:
        wanted = "model" if version is None else f"model {version}"
        raise DataError(f"{lake.root} has no {wanted}", "pass the folder that was passed to `save`")
    if len(paths) > 1:
        versions = sorted(path.rsplit("/", 1)[1] for path in paths)
        raise ConfigError(f"{lake.root} has several models: {versions}", "pass one of them as `version`")
    return read_model_info(paths[0])


def _folders(path: str) -> list[str]:
    infos = file_io.list_files(path)
    return [f"{path}/{info.base_name}" for info in infos if info.type == fs.FileType.Directory]


def validation_metrics(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the metrics of the validation rows in a model.json; see `Model.metrics`.

    The last entry was measured after the training.
    """
    history = description.get("history", ())
    final = description.get("metrics", {}).get("validation")
    if not final or not final["rows"] or not history:
        return []
    measured = {entry["step"]: entry["validation"] for entry in history if "validation" in entry}
    measured.setdefault(description["steps"], final)  # no effect if this step was already measured
    by_step = {entry["step"]: entry for entry in history}
    return [_entry(by_step[step], metrics) for step, metrics in sorted(measured.items())]


def _entry(entry: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {"epoch": entry["epoch"] + 1, "step": entry["step"], **{name: metrics[name] for name in _METRICS}}
