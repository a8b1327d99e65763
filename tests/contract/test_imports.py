"""Who may import whom: walks the imports of every source file and holds them against the architecture."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = (
    "conf",
    "etl",
    "training",
    "scoring",
    "jobs",
    "setup",
    "airflow_dags",
    "local_airflow",
    "tests",
    "benchmarks",
)
PRODUCT = ("conf", "etl", "training", "scoring", "jobs")

# A package or module and what of ours it may import beside its own package.
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "conf": (),
    "etl": ("conf",),
    "training": ("conf",),
    "scoring": (
        "conf",
        "training.models",
        "training.models.inputs",
        "training.checkpoints",
        "training.device.memory",
        "metrics",
        "training.device.precision",
        "training.models.factorization",
        "etl.workflow.fitted_workflow",
        "storage.publish",
        "metrics.histogram",
        "spark.worker_imports",
    ),
    "jobs": ("conf", "etl", "training", "scoring"),
    "airflow_dags": (),
    "local_airflow": ("setup",),
    "setup": (),
}

# A library, the modules that may import it, and those of them that may not: the predictor runs without Spark.
ONLY_IN: Mapping[str, tuple[str, ...]] = {
    "pyspark": ("etl", "scoring", "jobs", "training.launch"),
    "torch": ("training", "scoring"),
    "triton": ("training.kernels",),
    "horovod": ("training.launch", "training.launch.rank_main"),
    "petastorm": ("training",),
    "mlflow": ("training",),
    "airflow": ("airflow_dags",),
}
NOT_IN: Mapping[str, tuple[str, ...]] = {"pyspark": ("scoring.model.predictor",)}


def imports_of(source: str) -> Iterator[str]:
    """The dotted name of everything a file imports, also inside functions; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def violations(module: str, source: str) -> list[str]:
    """What a module imports against the rules, said in words."""
    package = module.split(".")[0]
    found = []
    for name in imports_of(source):
        top = name.split(".")[0]
        if name.startswith("."):
            found.append(f"{module} imports {name}: write the full name")
        elif top in PACKAGES and package in MAY_IMPORT and top != package:
            if not any(_within(name, allowed) for allowed in MAY_IMPORT[package]):
                found.append(
                    f"{module} imports {name}; {package} may import {MAY_IMPORT[package] or 'nothing of ours'}"
                )
        elif top in ONLY_IN and package in PRODUCT:
            allowed, barred = ONLY_IN[top], NOT_IN.get(top, ())
            if not any(_within(module, each) for each in allowed) or any(
                _within(module, each) for each in barred
            ):
                found.append(f"{module} imports {name}; {top} stays in {allowed}, without {barred}")
    return found


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def sources() -> list[tuple[str, Path]]:
    """(dotted module, file) of our packages that are there."""
    files = [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path)
        for path in files
    ]


def test_every_import_keeps_the_rules() -> None:
    found = [
        each for module, path in sources() for each in violations(module, path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_walk_sees_the_packages() -> None:
    modules = {module for module, _ in sources()}
    assert {"conf.types", "etl.build", "training.launch", "scoring.model.predictor", "jobs.runner"} <= modules


@pytest.mark.parametrize(
    "module, source",
    [
        ("conf.types", "from etl import build"),
        ("conf.types", "import pyspark.sql"),
        ("conf.types", "def f():\n    import torch"),
        ("etl.build", "from training.registry.versions import champion_as_of"),
        ("etl.build", "import torch"),
        ("training.loop.training_loop", "from pyspark.sql import SparkSession"),
        ("training.loop.training_loop", "import horovod.torch as hvd"),
        ("training.data.loader", "from storage.publish import publish"),
        ("scoring.spark.score_frames", "from etl.build import build"),
        ("scoring.spark.score_frames", "from training import loop"),
        ("scoring.spark.score_frames", "import training.registry.versions"),
        ("scoring.model.predictor", "from pyspark import TaskContext"),
        ("training.embeddings.table", "import triton"),
        ("jobs.train_model", "import torch"),
        ("jobs.report", "from tests.etl import oracle"),
        ("scoring.spark.score_frames", "from jobs import runner"),
        ("airflow_dags.submit", "from conf.load import load_config"),
        ("local_airflow.home", "from airflow_dags.settings import VARIABLE"),
        ("etl.split.time_split", "from . import read"),
    ],
)
def test_a_violation_is_seen(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    "module, source",
    [
        (
            "scoring.spark.score_frames",
            "from training.models import build_model\nfrom training.checkpoints import load_model",
        ),
        ("scoring.candidates", "from storage.publish import publish\nfrom pyspark.sql import functions as F"),
        ("training.launch", "import horovod.spark\nfrom pyspark.sql import SparkSession"),
        (
            "training.loop.training_loop",
            "import torch\nfrom conf.types import Train\nfrom metrics import auc",
        ),
        ("jobs.train_model", "from training.launch import train_on_ranks\nimport pyspark"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert violations(module, source) == []
