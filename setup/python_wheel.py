"""`make wheel`: builds the wheel of the package `nightrank`, for programs that read a lake and use models.

The wheel needs neither Spark nor Horovod, and installs into any environment:

    nightrank/              the package (docs/python.md)
    nightrank/_internal/    the folders of this repository that it imports, and compiled libraries
    nightrank/_project.tar  the files of the repository, for `nightrank setup`

The build rewrites the imports in the copied files, so that an environment gets no folder named `conf` or
`setup` at its top level: `from conf.errors import …` becomes `from nightrank._internal.conf.errors import …`.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import tarfile
from pathlib import Path

from setup import build_native
from setup.console import SetupError, fail, run, say, step
from setup.dist import version
from setup.environment import PACKAGES
from setup.install import BOOTSTRAP, ROOT, VENV

BUILD = ROOT / "build"
INNER = "nightrank._internal"
# The folders that nightrank imports. The others are for jobs.
INNER_PACKAGES = tuple(name for name in PACKAGES if name not in ("nightrank", "reporting", "jobs"))
PROJECT = "_project.tar"
# The files that `nightrank setup` installs: all except tests, benchmarks and local files.
PROJECT_CONTENTS = (
    *PACKAGES,
    "airflow_dags",
    "container",
    "docs",
    "local_airflow",
    "requirements",
    "setup",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "build.gradle",
    "pyproject.toml",
)

_METADATA = """\
[build-system]
requires = ["setuptools>=77", "wheel"]
build-backend = "setuptools.build_meta"

[project]
name = "nightrank"
version = "{version}"
description = "Reads lakes of Nightrank: tables as frames, features, scores and lists of trained models"
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.11"
dependencies = ["numpy>=1.26", "pyarrow>=14.0.2", "pydantic>=2.5", "pyyaml>=6", "xxhash>=3"]

[project.optional-dependencies]
models = ["torch>=2.11", "safetensors>=0.4"]
pandas = ["pandas>=2.1"]
polars = ["polars>=1"]
online = ["redis>=5"]
hdfs = ["hdfs-native>=0.14"]
azure = ["azure-storage-blob>=12.20", "azure-identity>=1.16"]
google = ["google-auth>=2.30", "requests>=2.31"]
export = ["onnx>=1.18", "onnxscript>=0.5", "onnxruntime>=1.20"]
plots = ["matplotlib>=3.8"]
notebook = ["pandas>=2.1", "matplotlib>=3.8", "tqdm>=4.60"]
search = ["pandas>=2.1", "scikit-learn>=1.4"]
spark = ["pyspark>=3.5", "pandas>=2.1,<3"]
recommender = ["torch>=2.11", "safetensors>=0.4", "duckdb>=2", "pyspark>=3.5"]
mlflow = ["mlflow-skinny>=3", "pandas>=2.1"]

[project.scripts]
nightrank = "nightrank.command:main"

[tool.setuptools.packages.find]
include = ["nightrank*"]

[tool.setuptools.package-data]
"*" = ["*.so", "*.yaml", "*.json", "py.typed", "{project}"]
"""
# The compiled libraries are for this processor and any version of Python.
_TAGS = "[bdist_wheel]\nplat_name = linux_x86_64\npython_tag = py3\n"


def rewritten(source: str, packages: tuple[str, ...] = INNER_PACKAGES) -> str:
    """Returns a module's source with the new prefix in imports of `packages` and in names of their modules.

    Raises:
        SetupError: the source has an import that cannot be rewritten, such as `import conf.errors`.
    """
    lines = [line.encode() for line in source.splitlines(keepends=True)]  # ast counts bytes
    for line, column, name in sorted(_names(ast.parse(source), packages), reverse=True):
        begin = lines[line - 1].index(name.encode(), column)
        lines[line - 1] = lines[line - 1][:begin] + f"{INNER}.".encode() + lines[line - 1][begin:]
    return b"".join(lines).decode()


def _names(tree: ast.Module, packages: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """Returns the module names to be prefixed in a source: line, a column at or before the name, the name."""
    places = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in packages:
                    raise SetupError(
                        f"`import {alias.name}` cannot be rewritten; write `from {alias.name} import …`"
                    )
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module.split(".")[0] in packages:
                places.append((node.lineno, node.col_offset + len("from "), node.module))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _is_module(node.value, packages)
        ):
            places.append((node.lineno, node.col_offset, node.value))
    return places


def _is_module(text: str, packages: tuple[str, ...]) -> bool:
    """Returns whether a text is the name of a module or a sub-folder of `packages`."""
    parts = text.split(".")
    if len(parts) < 2 or parts[0] not in packages or not all(part.isidentifier() for part in parts):
        return False
    path = ROOT.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def stage(folder: Path) -> None:
    """Writes the files of the wheel, and the settings of the build, to an empty folder."""
    ignored = shutil.ignore_patterns("__pycache__", "*.cpp", "*.h")
    target = folder / "nightrank"
    shutil.copytree(ROOT / "nightrank", target, ignore=ignored)
    inner = target / "_internal"
    for name in INNER_PACKAGES:
        shutil.copytree(ROOT / name, inner / name, ignore=ignored)
    (inner / "__init__.py").write_text(
        '"""The folders of the repository that nightrank imports. Not public."""\n'
    )
    for path in target.rglob("*.py"):
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
    for library in build_native.build(ROOT, inner):  # conf/compiled.py loads them
        library.chmod(0o755)
    _pack_project(target / PROJECT)
    (folder / "pyproject.toml").write_text(_METADATA.format(version=version(), project=PROJECT))
    (folder / "setup.cfg").write_text(_TAGS)
    shutil.copy(ROOT / "docs/python.md", folder / "README.md")
    shutil.copy(ROOT / "LICENSE", folder)


def _pack_project(archive: Path) -> None:
    """Writes the files of PROJECT_CONTENTS to an archive.

    Raises:
        SetupError: one of PROJECT_CONTENTS is missing.
    """
    with tarfile.open(archive, "w") as packed:
        for name in PROJECT_CONTENTS:
            path = ROOT / name
            if not path.exists():
                raise SetupError(f"{path} is missing, and the wheel needs it")
            files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            for file in files:
                if "__pycache__" not in file.parts:
                    packed.add(file, str(file.relative_to(ROOT)), filter=_without_owner_and_time)


def _without_owner_and_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 315619200  # a fixed time, so that equal sources give equal bytes
    return member


def make_wheel(out: Path = BUILD) -> Path:
    """Builds the wheel in a folder and returns its path. Equal sources result in a wheel with equal bytes.

    Raises:
        SetupError: a file cannot be rewritten, or the wheel cannot be built.
    """
    scratch = out / "python-wheel"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    stage(scratch)
    command: list[str | Path] = [BOOTSTRAP / "bin/uv", "build", "--quiet", "--wheel", "--no-build-isolation"]
    command += ["--offline", "--python", VENV / "bin/python", "--out-dir", scratch / "dist", scratch]
    run(command, env={**os.environ, "SOURCE_DATE_EPOCH": "315619200"})
    (built,) = (scratch / "dist").glob("nightrank-*.whl")
    wheel = out / built.name
    built.replace(wheel)
    shutil.rmtree(scratch)
    return wheel


def main() -> int:
    """Builds the wheel and returns the exit code."""
    try:
        with step("building the wheel"):
            wheel = make_wheel()
    except SetupError as error:
        return fail(error)
    say(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
