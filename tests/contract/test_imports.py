"""Which package may import which, and that neither folders nor files import each other in a cycle.

The layers and the exceptions are the tables below; ARCHITECTURE.md describes them.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRODUCT = (
    "conf",
    "storage",
    "metrics",
    "spark",
    "device",
    "etl",
    "training",
    "scoring",
    "reporting",
    "nightrank",
    "jobs",
)
PACKAGES = (*PRODUCT, "setup", "airflow_dags", "local_airflow", "tests", "benchmarks")

# A package, or a module within it with a rule of its own, and what of ours it may import beside itself.
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "conf": (),
    "storage": ("conf",),
    "metrics": ("conf",),
    "spark": ("conf", "storage"),
    "device": ("conf", "storage", "metrics", "spark"),
    "etl": ("conf", "storage", "metrics", "spark", "device"),
    "training": ("conf", "storage", "metrics", "spark"),
    "scoring": (
        "conf",
        "storage",
        "metrics",
        "spark",
        "etl.build",
        "etl.passes",
        "etl.fit.version_tables",
        "etl.latest",
        "etl.prepare",
        "etl.quality",
        "etl.raw",
        "etl.readers",
        "etl.spark",
        "etl.synthetic.truth",
        "etl.workflow",
        "training.checkpoints",
        "training.data.prefetch",
        "training.data.sharding",
        "training.device",
        "training.export",
        "training.kernels",
        "training.models",
        "training.registry",
    ),
    "reporting": ("conf", "storage", "metrics", "spark", "etl", "training", "scoring"),
    "nightrank": (
        "conf",
        "storage",
        "metrics",
        "etl.fit",
        "etl.workflow",
        "training.loop",
        "training.registry",
        "training.settings",
        "scoring",
    ),
    # The rule for ids of a log also holds for the frames of a Recommender.
    "nightrank.interactions": ("conf", "storage", "etl.raw.row_rules", "nightrank"),
    # What runs the code of the jobs in a private folder, only when a Recommender is fitted.
    "nightrank.recommender_lake": (
        "conf",
        "storage",
        "etl.build",
        "etl.workflow",
        "spark.workers",
        "training.loop",
        "scoring",
    ),
    # What packages of others import, only when a name is used.
    "nightrank.extending": (
        "conf",
        "storage.file_io",
        "etl.ops",
        "etl.raw.file_splits",
        "etl.readers",
        "training.data.batch",
        "training.models",
        "training.settings",
        "scoring",
    ),
    "jobs": (
        "conf",
        "storage",
        "metrics",
        "spark",
        "etl",
        "training",
        "scoring",
        "reporting",
        "nightrank",
    ),
    "airflow_dags": (),
    "local_airflow": ("setup",),
    "setup": (),
    "setup.doctor": ("conf", "storage", "spark", "training.kernels", "setup"),
}

_FIRST_INNER = sorted(MAY_IMPORT, key=len, reverse=True)

# A library, the modules that may import it, and modules within them that may not.
ONLY_IN: Mapping[str, tuple[str, ...]] = {
    "pyspark": (
        "conf.lazy_imports",  # only when a name is used
        "storage.publish",
        "storage.run_context",
        "spark",
        "etl",
        "training.launch",
        "scoring",
        "reporting.monitoring",
        "nightrank.lake",
        "nightrank.spark_frames",  # only for types
        "jobs",
    ),
    "torch": (
        "device",
        "etl.text.gpu_tasks",  # only in functions that a process with a GPU calls
        "training",
        "scoring",
    ),
    "triton": ("training.kernels",),
    "horovod": ("training.launch",),
    "petastorm": ("training.data",),
    "mlflow": ("training.registry",),
    "optuna": ("training.registry.search",),
    "openlineage": ("reporting.monitoring",),
    "airflow": ("airflow_dags",),
    "redis": ("scoring.delivery", "nightrank.online"),
    "matplotlib": (
        "nightrank.model",  # only for types
        "nightrank.plots",  # only when a plot is made
    ),
}
NOT_IN: Mapping[str, tuple[str, ...]] = {
    "pyspark": ("scoring.model.predictor",),  # the predictor runs without Spark
    "torch": (
        "training.registry",
        "training.settings",
        "training.architecture_settings",
    ),  # drivers import these
}


@cache
def imports_of(source: str) -> tuple[str, ...]:
    """The dotted name of everything a file imports, also inside functions; `from a import b` gives `a.b`."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    return tuple(names)


def violations(module: str, source: str) -> list[str]:
    """One message for each import of this module that breaks a rule."""
    package = module.split(".")[0]
    allowed = next((MAY_IMPORT[name] for name in _FIRST_INNER if _within(module, name)), None)
    messages = []
    for name in imports_of(source):
        top = name.split(".")[0]
        if name.startswith("."):
            messages.append(f"{module} imports {name}: write the full name")
        elif top in PACKAGES and allowed is not None and top != package:
            if not any(_within(name, prefix) for prefix in allowed):
                may_import = allowed or "nothing of ours"
                messages.append(f"{module} imports {name}; {package} may import {may_import}")
        elif top in ONLY_IN and package in PRODUCT:
            places, barred = ONLY_IN[top], NOT_IN.get(top, ())
            if not any(_within(module, prefix) for prefix in places) or any(
                _within(module, prefix) for prefix in barred
            ):
                messages.append(f"{module} imports {name}; {top} stays in {places}, without {barred}")
    return messages


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


@cache
def product_sources() -> Mapping[str, str]:
    """Path below the root -> text, of every Python file of the product."""
    paths = [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def module_of(path: str) -> str:
    """`etl/ops/__init__.py` -> `etl.ops`."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Path -> the paths it imports, among these files.

    `from a import b` is an import of a/b.py if there is one, else of a.
    """
    path_of = {module_of(path): path for path in sources}
    graph: dict[str, set[str]] = {}
    for path, text in sources.items():
        imported = set()
        for name in imports_of(text):
            target = path_of.get(name) or path_of.get(name.rpartition(".")[0])
            if target is not None and target != path:
                imported.add(target)
        graph[path] = imported
    return graph


def folder_graph(files: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same graph between folders: a parent folder and its sub-folder are two folders."""
    folders: dict[str, set[str]] = {}
    for path, imported in files.items():
        folder = path.rpartition("/")[0]
        others = {target.rpartition("/")[0] for target in imported}
        folders.setdefault(folder, set()).update(others - {folder})
    return folders


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of two or more nodes, sorted. Tarjan 1972."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                components.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return components


def test_every_import_keeps_the_rules() -> None:
    paths = [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]
    messages = [
        message
        for path in paths
        for message in violations(
            module_of(path.relative_to(ROOT).as_posix()), path.read_text(encoding="utf-8")
        )
    ]
    assert messages == []


def test_no_two_folders_import_each_other() -> None:
    assert cycles(folder_graph(import_graph(product_sources()))) == []


def test_no_files_import_each_other() -> None:
    assert cycles(import_graph(product_sources())) == []


def test_nothing_imports_a_job() -> None:
    """A job is a file of jobs/ with a `__main__` part; what others need of it is a library."""
    sources = product_sources()
    mains = {
        path
        for path, text in sources.items()
        if path.startswith("jobs/") and '__name__ == "__main__"' in text
    }
    assert len(mains) > 15
    importers = {
        path: imported & mains for path, imported in import_graph(sources).items() if imported & mains
    }
    assert importers == {}


def test_the_graph_covers_every_package() -> None:
    graph = import_graph(product_sources())
    assert {path.split("/")[0] for path in graph} == set(PRODUCT)
    assert "etl/native/distinct_values.py" in graph["etl/ops/tables.py"]
    assert "storage/file_io.py" in graph["storage/manifest.py"], (
        "an import of a module by `from package import`"
    )


@pytest.mark.parametrize(
    "path, line, folder_cycle, file_cycle",
    [
        ("etl/native/distinct_values.py", "from etl.ops.tables import Tables", True, True),
        ("etl/raw/file_columns.py", "def f():\n    from etl.spark import raw_frames", True, True),
        ("storage/paths.py", "import storage.manifest", False, True),
        ("reporting/elements/charts.py", "from reporting.html import page", True, True),
        ("scoring/rules/attributes.py", "from scoring.ranking import recommender", True, True),
        ("training/kernels/choice.py", "from training.embeddings.table import StackedEmbedding", True, False),
    ],
)
def test_a_new_cycle_is_found(path: str, line: str, folder_cycle: bool, file_cycle: bool) -> None:
    sources = product_sources()
    files = import_graph({**sources, path: f"{sources[path]}\n{line}\n"})
    assert bool(cycles(folder_graph(files))) == folder_cycle
    assert bool(cycles(files)) == file_cycle


@pytest.mark.processes
def test_git_ignores_no_source_folder() -> None:
    """A folder name in .gitignore, such as `lake`, would silently leave new source files out of commits."""
    folders = {path.rpartition("/")[0] for path in product_sources()}
    probes = "\n".join(f"{folder}/new_module.py" for folder in sorted(folders))
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    ignored = subprocess.run(command, input=probes, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.returncode in (0, 1), ignored.stderr
    assert ignored.stdout == ""


@pytest.mark.parametrize(
    "module, source",
    [
        ("conf.types", "from etl import build"),
        ("conf.types", "from storage import paths"),
        ("conf.types", "import pyspark.sql"),
        ("conf.types", "def f():\n    import torch"),
        ("storage.manifest", "from etl.raw import files"),
        ("storage.manifest", "from pyspark.sql import DataFrame"),
        ("etl.build", "from training.registry.versions import champion_as_of"),
        ("etl.build", "import torch"),
        ("etl.readers.text", "import torch"),
        ("device.columns", "from etl.native.scan import scan"),
        ("training.loop.run", "from device.columns import arrow"),
        ("training.loop.run", "from pyspark.sql import SparkSession"),
        ("training.loop.run", "import horovod.torch as hvd"),
        ("training.data.loader", "from etl.build import build"),
        ("training.registry.versions", "import torch"),
        ("scoring.spark.score_frames", "from etl.fit import fit_workflow"),
        ("scoring.spark.score_frames", "from training import loop"),
        ("scoring.model.predictor", "from pyspark import TaskContext"),
        ("training.embeddings.table", "import triton"),
        ("jobs.train_model", "import torch"),
        ("jobs.report", "from tests.etl import oracle"),
        ("scoring.spark.score_frames", "from jobs import runner"),
        ("reporting.html.page", "from jobs import runner"),
        ("nightrank.model", "import torch"),
        ("nightrank.lake", "from jobs import score_daily"),
        ("nightrank.recommender", "from etl.build import build"),
        ("reporting.html.page", "import nightrank"),
        ("airflow_dags.submit", "from conf.load import load_config"),
        ("local_airflow.home", "from airflow_dags.settings import VARIABLE"),
        ("setup.install", "from conf.load import load_config"),
        ("setup.doctor.lake", "from etl.build import build"),
        ("etl.raw.splits", "from . import negatives"),
    ],
)
def test_a_violation_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    "module, source",
    [
        (
            "scoring.model.predictor",
            "from training.models import build_model\nfrom training.checkpoints import load_model",
        ),
        (
            "scoring.candidates.popular",
            "from storage.publish import publish\nfrom pyspark.sql import functions",
        ),
        ("training.launch.ranks", "import horovod.spark\nfrom pyspark.sql import SparkSession"),
        ("training.loop.run", "import torch\nfrom conf.types import Train\nfrom metrics import auc"),
        ("jobs.train_model", "from training.launch import train_on_ranks\nimport pyspark"),
        ("setup.doctor.lake", "from storage import file_io\nfrom setup.doctor.findings import Finding"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert violations(module, source) == []
