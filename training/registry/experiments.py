"""The models of comparisons: experiments that never serve.

    models/<name>-experiments/<version>/    a model of an experiment, as for every model

This folder has no runs, promotions or interventions. So no model in it becomes challenger or champion: the
gate and overrides read only the folder `models/<name>`.

A model of an experiment is kept as long as the published result of a comparison names its version. Other
models are deleted when they are older than `output.grace_hours`. This time must be longer than a comparison
takes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from conf.errors import NightrankError
from conf.types import Config
from storage import file_io
from storage.manifest import is_published, read_manifest
from storage.paths import Lake
from training.registry.model_json import MODEL_JSON
from training.registry.training_leftovers import delete_training_leftovers, is_older
from training.registry.versions import model_path

log = logging.getLogger("nightrank.training")


def experiments_name(config: Config) -> str:
    """Returns the name of the experiments' models in the registry."""
    return f"{config.name}-experiments"


def experiments_config(config: Config) -> Config:
    """Returns the configuration of an experiment with the experiments' name."""
    return config.model_copy(update={"name": experiments_name(config)})


def delete_old_experiments(config: Config) -> int:
    """Deletes old models that no published comparison names, and unused files; returns how many models.

    An error is only logged, because the result of the comparison is already published.
    """
    lake, name = Lake(config.lake), experiments_name(config)
    limit = time.time() - config.output.grace_hours * 3600
    deleted = 0
    try:
        named = _named_versions(lake)
        folders = [info.base_name for info in file_io.list_files(lake.models(name)) if not info.is_file]
        for version in sorted(set(folders) - named):
            files = [info for info in file_io.list_files(model_path(lake, name, version)) if info.is_file]
            if files and all(is_older(info, limit) for info in files):
                _delete_folder(model_path(lake, name, version))
                _delete_folder(lake.checkpoints(version))
                deleted += 1
    except (NightrankError, OSError) as error:
        log.warning("old experiments in %s could not be deleted: %s", lake.models(name), error)
    delete_training_leftovers(lake, name, config.output.grace_hours)
    return deleted


def _named_versions(lake: Lake) -> Set[str]:
    """Returns the model versions that the published comparisons of the lake name."""
    versions: set[str] = set()
    for folder in file_io.list_files(lake.comparisons_root):
        for partition_folder in (
            () if folder.is_file else file_io.list_files(f"{lake.comparisons_root}/{folder.base_name}")
        ):
            date = partition_folder.base_name.removeprefix("dt=")
            partition = lake.comparisons(folder.base_name).partition(date)
            if is_published(partition):
                versions |= set(read_manifest(partition).facts["versions"])
    return versions


def _delete_folder(path: str) -> None:
    """Deletes the files of a folder, model.json first, so that readers never see an incomplete model."""
    files = [info.base_name for info in file_io.list_files(path) if info.is_file]
    for name in sorted(files, key=lambda name: (name != MODEL_JSON, name)):
        with suppress(FileNotFoundError):  # another run has deleted it
            file_io.delete_file(f"{path}/{name}")
    if file_io.is_local(path):
        with suppress(OSError):  # the folder does not exist, or another run has written to it
            Path(file_io.filesystem(path)[1]).rmdir()
