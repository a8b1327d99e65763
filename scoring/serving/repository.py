"""Adds a model to a model repository of Triton Inference Server, while servers may read it.

    <repository>/workflow/<version>/     computes features of raw rows: model.py, workflow/, export.json
    <repository>/ranker/<version>/       ranker.onnx; model.py for the Python backend
    <repository>/nightrank/<version>/    served.json, which describes the version

With a look-up, there are also `lookup` (model.py) and the ensemble `nightrank_online`. During an experiment,
`nightrank_treatment` and `nightrank_treatment_online` are ensembles that use the treatment's version. Each of
these models has a config.pbtxt. The versions of all models are numbers from 1. The folders of a version are
written elsewhere, and moved to these paths when they are complete. Then config.pbtxt of the ensembles is
replaced. So an ensemble changes its versions of workflow and ranker at the same time.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from conf.errors import ConfigError, DataError, InfrastructureError
from etl.fit.version_tables import save_fitted
from etl.workflow.fitted_workflow import LocalWorkflow
from scoring.model.export import export
from scoring.model.model_info import ModelInfo
from scoring.serving.model_configs import (
    ENSEMBLE,
    LOOKUP,
    ONLINE_ENSEMBLE,
    PROBABILITY,
    PROGRAM,
    RANKER,
    TREATMENT_ENSEMBLE,
    TREATMENT_ONLINE_ENSEMBLE,
    WORKFLOW,
    Backend,
    ServedInputs,
    ensemble_config,
    lookup_config,
    online_ensemble_config,
    ranker_config,
    workflow_config,
)
from storage.feature_spec import ITEM_KEY, USER_KEY, FeatureSpec
from storage.file_io import local_folder
from storage.paths import LakePaths
from training.export.write_export import DESCRIPTION

CONFIG, SERVED = "config.pbtxt", "served.json"
_MODELS = (WORKFLOW, RANKER, LOOKUP, ONLINE_ENSEMBLE, ENSEMBLE)  # the last folder has the file served.json
_OF_TREATMENT = (TREATMENT_ONLINE_ENSEMBLE, TREATMENT_ENSEMBLE)
Variant = Literal["control", "treatment"]
_PYTHON = (
    '"""A model of Triton\'s Python backend (docs/exports.md)."""\n\nfrom nightrank.triton_models import '
)
_CODE = {
    name: f"{_PYTHON}{name} as TritonPythonModel\n" for name in ("EncodeRows", "RunProgram", "LookUpFeatures")
}


def add_to_repository(
    info: ModelInfo,
    workflow: LocalWorkflow,
    folder: str,
    backend: Backend = "onnxruntime",
    *,
    online: bool = False,
    variant: Variant = "control",
) -> dict[str, Any]:
    """Adds a model to a model repository, and makes the repository's ensemble use the model.

    The first model of a repository has the version 1. The version that the ensemble used before is kept, and
    older versions are deleted. If the model is already in the repository, the function only switches the
    ensemble to the version of this model. So an operator can roll back to an earlier model.

    Args:
        info: the model.
        workflow: the workflow that computes its features.
        folder: the repository. It is created if it does not exist, and may contain other models.
        backend: where the ranker runs.
        online: whether there is also an ensemble that looks up the features of users and items in the store
            that the sink `redis` fills.
        variant: `treatment` if the model is the treatment of an experiment. Then it gets the ensemble
            `nightrank_treatment`, and the control keeps the ensemble `nightrank`.

    Returns:
        `version` (of the repository), `model_version`, `workflow_version` and `inputs`.

    Raises:
        ConfigError: the folder is not a local path, or the backend or the variant does not exist. Also raised
            if the model is a treatment, but the repository has no model of the control. Also raised if the
            repository has models with the same names that this project did not write, or models with another
            backend or other inputs. Also raised if a raw column has the name of another input or of the
            output of an ensemble. With `online`, also raised if a feature depends on user and item together,
            or if no feature depends on the user or none on the item.
        DataError: the model is damaged, or a file of the repository is damaged.
        InfrastructureError: the repository cannot be written, or the results of an exported program differ
            too much from those of the model.
    """
    if backend not in get_args(Backend):
        raise ConfigError(f"there is no backend {backend!r}", f"choose from {list(get_args(Backend))}")
    if variant not in get_args(Variant):
        raise ConfigError(f"there is no variant {variant!r}", f"choose from {list(get_args(Variant))}")
    root = local_folder(folder)
    with locked_with_scratch(root) as scratch:
        return _Repository(root, scratch).add(info, workflow, backend, online=online, variant=variant)


def withdraw_treatment(folder: str) -> None:
    """Removes the ensembles of the treatment from a model repository, if it has any.

    Raises:
        ConfigError: the folder is not a local path.
        InfrastructureError: the repository cannot be written.
    """
    root = local_folder(folder)
    with locked_with_scratch(root) as scratch:
        _Repository(root, scratch).withdraw_treatment()


class _Repository:
    """A repository that this process has locked.

    Args:
        root: its folder.
        scratch: an empty folder on the same file system, which no server reads.
    """

    def __init__(self, root: Path, scratch: Path) -> None:
        self._root = root
        self._scratch = scratch

    def add(
        self,
        info: ModelInfo,
        workflow: LocalWorkflow,
        backend: Backend,
        *,
        online: bool,
        variant: Variant,
    ) -> dict[str, Any]:
        """Implements `add_to_repository` in the locked repository."""
        self._require_own()
        context = context_columns(info.spec, workflow) if online else None
        require_names(workflow.raw_types(), context)
        before = self._served(ENSEMBLE)
        if variant == "treatment" and before is None:
            raise ConfigError(
                f"{self._root} has no model for the control", "export the model of the control first"
            )
        described = self._described()
        known = [facts for facts in described.values() if facts["model_version"] == info.version]
        if known:
            facts = known[0]
            inputs = ServedInputs.from_json(facts["inputs"], str(self._root))
            replace(inputs, backend=backend, context=context).require_equal(inputs, str(self._root))
        else:
            exported = export(info, str(self._scratch / "export"))
            inputs = ServedInputs.of(backend, workflow.raw_types(), exported["inputs"], context)
            for other in described.values():
                inputs.require_equal(
                    ServedInputs.from_json(other["inputs"], str(self._root)), str(self._root)
                )
            facts = self._write(exported, workflow, inputs)
        self._let_ensembles_use(inputs, facts["version"], variant)
        if variant == "control" and facts["version"] != before:
            self._delete_except({facts["version"], before, self._served(TREATMENT_ENSEMBLE)})
        return facts

    def withdraw_treatment(self) -> None:
        """Moves the ensembles of the treatment to the scratch folder, where they are deleted."""
        for name in _OF_TREATMENT:
            if (self._root / name).exists():
                (self._root / name).rename(self._scratch / name)

    def _write(
        self, exported: dict[str, Any], workflow: LocalWorkflow, inputs: ServedInputs
    ) -> dict[str, Any]:
        """Writes a new version, and moves its folders to their final paths.

        Returns what served.json contains.
        """
        version = max([0, *(number for name in _MODELS for number in self._versions(name))]) + 1
        facts = {
            "version": version,
            "model_version": exported["model_version"],
            "workflow_version": exported["workflow_version"],
            "inputs": inputs.to_json(),
        }
        configs = {WORKFLOW: workflow_config(inputs), RANKER: ranker_config(inputs)}
        if inputs.context is not None:
            configs[LOOKUP] = lookup_config(inputs)
        configs |= _ensembles(inputs, version, "control")
        for name, config in configs.items():
            (self._scratch / name / str(version)).mkdir(parents=True)
            (self._scratch / name / CONFIG).write_text(config + "\n", encoding="utf-8")
        self._fill_workflow(self._scratch / WORKFLOW / str(version), workflow)
        self._fill_ranker(self._scratch / RANKER / str(version), inputs.backend)
        if inputs.context is not None:
            (self._scratch / LOOKUP / str(version) / "model.py").write_text(_CODE["LookUpFeatures"])
            (self._scratch / ONLINE_ENSEMBLE / str(version) / ".keep").write_text("")
        served = self._scratch / ENSEMBLE / str(version) / SERVED
        served.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        for name in configs:
            self._place(name, version)
        return facts

    def _fill_workflow(self, folder: Path, workflow: LocalWorkflow) -> None:
        save_fitted(LakePaths(str(folder / "workflow")), workflow)
        (folder / "model.py").write_text(_CODE["EncodeRows"], encoding="utf-8")
        shutil.copy(self._scratch / "export" / DESCRIPTION, folder)

    def _fill_ranker(self, folder: Path, backend: Backend) -> None:
        exported = self._scratch / "export"
        for path in exported.glob(f"{PROGRAM}*"):  # large weights are in a file next to the program
            path.rename(folder / path.name)
        if backend == "python":
            (folder / "model.py").write_text(_CODE["RunProgram"], encoding="utf-8")

    def _place(self, name: str, version: int) -> None:
        """Moves a model, or a new version of a model, from the scratch folder to the repository."""
        source, target = self._scratch / name, self._root / name
        if target.exists():
            source, target = source / str(version), target / str(version)
        source.rename(target)

    def _let_ensembles_use(self, inputs: ServedInputs, version: int, variant: Variant) -> None:
        for name, config in _ensembles(inputs, version, variant).items():
            if not (self._root / name / str(version)).exists():
                new = self._scratch / name
                (new / str(version)).mkdir(parents=True)
                (new / str(version) / ".keep").write_text("")
                (new / CONFIG).write_text(config + "\n", encoding="utf-8")
                self._place(name, version)
            target = self._root / name / CONFIG
            if not target.exists() or target.read_bytes() != f"{config}\n".encode():
                new = self._scratch / CONFIG
                new.write_text(config + "\n", encoding="utf-8")
                new.replace(target)

    def _delete_except(self, kept: set[int | None]) -> None:
        """Moves all versions except `kept` to the scratch folder. Their files are deleted there."""
        for name in (*_OF_TREATMENT, *reversed(_MODELS)):
            for number in self._versions(name):
                if number not in kept:
                    old = self._scratch / f"{name}.{number}"
                    (self._root / name / str(number)).rename(old)

    def _require_own(self) -> None:
        present = [name for name in (*_MODELS, *_OF_TREATMENT) if (self._root / name).exists()]
        if present and not self._described():
            raise ConfigError(
                f"{self._root} has models named {present}, which this project did not export, or whose "
                "export was not completed",
                "pass another folder, or remove these models",
            )

    def _versions(self, name: str) -> list[int]:
        folder = self._root / name
        paths = folder.iterdir() if folder.exists() else ()
        return sorted(int(path.name) for path in paths if path.is_dir() and path.name.isdecimal())

    def _described(self) -> dict[int, dict[str, Any]]:
        """Maps each complete version to the content of its served.json."""
        described = {}
        for number in self._versions(ENSEMBLE):
            path = self._root / ENSEMBLE / str(number) / SERVED
            if path.exists():
                described[number] = read_served(path)
        return described

    def _served(self, ensemble: str) -> int | None:
        """Returns the version that an ensemble uses; None if the ensemble does not exist."""
        path = self._root / ensemble / CONFIG
        if not path.exists():
            return None
        pinned = re.search(r"versions: \[ (\d+) \]", path.read_text(encoding="utf-8", errors="replace"))
        return int(pinned.group(1)) if pinned else None


def _ensembles(inputs: ServedInputs, version: int, variant: Variant) -> dict[str, str]:
    """Maps each ensemble of a variant to its configuration. The ensemble with served.json is the last one."""
    names = _OF_TREATMENT if variant == "treatment" else (ONLINE_ENSEMBLE, ENSEMBLE)
    online = {} if inputs.context is None else {names[0]: online_ensemble_config(inputs, version, names[0])}
    return {**online, names[1]: ensemble_config(inputs, version, names[1])}


# The code below reads the description of a version (served.json), locks the folder of a model repository, and
# creates a scratch folder.


def read_served(path: Path) -> dict[str, Any]:
    """Returns the content of the file served.json.

    Raises:
        DataError: the file is damaged.
    """
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {"version", "model_version", "workflow_version", "inputs"} <= set(facts):
            return facts
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}", "export the model to another folder") from error
    raise DataError(f"{path} is damaged: it lacks keys", "export the model to another folder")


@contextmanager
def locked_with_scratch(folder: Path) -> Iterator[Path]:
    """Creates a repository if it does not exist, and locks it. Yields an empty folder for unfinished files.

    Raises:
        InfrastructureError: the repository cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder), _scratch_beside(folder) as scratch:
            yield scratch
    except OSError as error:
        raise InfrastructureError(
            f"{folder} cannot be written: {error}",
            "choose another folder, or free disk space; the folder and its parent must be on one file system",
        ) from error


@contextmanager
def _scratch_beside(repository: Path) -> Iterator[Path]:
    """Creates a folder next to a repository, on the same file system.

    The folder is not in the repository, because servers would treat it as a model.
    """
    with tempfile.TemporaryDirectory(
        prefix=f".{repository.name}.", dir=repository.parent, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Waits until no other process writes to this folder, and locks the folder during the block."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# The code below checks whether the columns and features of a model can be served.


def context_columns(spec: FeatureSpec, workflow: LocalWorkflow) -> dict[str, str]:
    """Returns the raw columns of context features, with their types.

    Raises:
        ConfigError: a feature depends on user and item together, or no feature depends on the user, or none
            on the item.
    """
    pairs = [feature.name for feature in spec.scoped("pair")]
    if pairs:
        raise ConfigError(
            f"features of (user, item) pairs cannot be looked up: {pairs} are in none of scopes.user, "
            "scopes.item and scopes.context",
            "add their columns to one of these scopes or remove the features, and train again; or export the "
            "model without the look-up",
        )
    without = [scope for scope in ("user", "item") if not spec.scoped(scope)]
    if without:
        raise ConfigError(
            f"the model has no features of the scopes {without} to look up",
            "name the columns of users and items in scopes.user and scopes.item, and train again; or export "
            "the model without the look-up",
        )
    names = [feature.name for feature in spec.scoped("context")]
    return {**workflow.raw_types(names)} if names else {}


def require_names(raw_columns: Mapping[str, str], context: Mapping[str, str] | None) -> None:
    """Raises ConfigError if a raw column has the name of the ensemble's output or of a key of the look-up."""
    taken = [name for name in raw_columns if name == PROBABILITY]
    taken += [name for name in context or () if name in (USER_KEY, ITEM_KEY)]
    if taken:
        raise ConfigError(
            f"the raw columns {taken} have the same names as other inputs or outputs of the ensemble",
            "rename the columns in the configuration, and train again",
        )
