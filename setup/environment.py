"""Makes an environment that can be moved: the locked packages jobs run with, Horovod, our wheel and its compiled halves.

Its interpreter is a link to the Python that made it, which a node must have at the same path; nothing else in it knows where it
lies. What hangs on the lock files alone is made once and kept in the cache; an environment shares its files by hard links.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import sys
from pathlib import Path

from setup import build_horovod, build_native, compiled_archive
from setup.console import SetupError, cache_folder, capture, fail, run, say, step
from setup.install import BOOTSTRAP, ROOT, VENV, site_packages

# What decides about the packages; the rest of requirements/ is for other environments.
LOCKS = ("runtime.txt", "horovod.txt")
_OFFLINE = ("--quiet", "--no-deps", "--no-index", "--offline", "--compile-bytecode")
# The packages that only tests, benchmarks and builds use are not in it, so that it is smaller than .venv.
CHECK_IMPORTS = (
    "import jobs.stages.build_features, scoring.spark.score_frames, training.launch.rank_main, horovod.torch;"
    "from etl.native.library import library; library()"
)


def build_wheel(root: Path, out: Path) -> Path:
    """Our packages with their data files as a wheel in this folder. The same sources give the same bytes."""
    scratch = out / "wheel-build"
    shutil.rmtree(scratch, ignore_errors=True)
    for name in ("conf", "storage", "metrics", "spark", "etl", "training", "scoring", "reporting", "jobs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / name, scratch / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, scratch)
    for old in out.glob("nightrank-*.whl"):
        old.unlink()
    command: list[str | Path] = [
        BOOTSTRAP / "bin/uv",
        "build",
        "--quiet",
        "--wheel",
        "--no-build-isolation",
        "--offline",
    ]
    command += ["--python", VENV / "bin/python", "--out-dir", out, scratch]
    run(command, env={**os.environ, "SOURCE_DATE_EPOCH": "315619200"})  # zip's first year
    shutil.rmtree(scratch)
    (wheel,) = out.glob("nightrank-*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path) -> None:
    """The environment at this folder; what was there is replaced.

    Raises:
        SetupError: a package is missing or does not import.
    """
    base = kept_packages()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(base, folder, symlinks=True, copy_function=os.link)
    except (OSError, shutil.Error):  # the cache lies on another file system
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder, symlinks=True)
    _uv_pip(folder, "install", *_OFFLINE, wheel)
    build_native.build(ROOT, folder)
    # From the root folder: of the checkout nothing may be imported.
    capture([folder / "bin/python", "-W", "ignore", "-c", CHECK_IMPORTS], cwd=Path("/"))


def kept_packages() -> Path:
    """The environment without our wheel, from the cache or made now."""
    digest = hashlib.sha256(sys.version.encode() + str(_python()).encode())
    for part in (*(f"requirements/{name}" for name in LOCKS), "setup/compiled_archive.py"):
        digest.update((ROOT / part).read_bytes())
    kept = cache_folder() / "environments" / digest.hexdigest()[:16]
    if not kept.is_dir():
        with step("making the environment that is packed (once for these lock files)"):
            _make_packages(kept)
    return kept


def _make_packages(kept: Path) -> None:
    scratch = kept.with_name(f"{kept.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    run([BOOTSTRAP / "bin/uv", "venv", "--quiet", "--relocatable", "--python", _python(), scratch])
    constraints: list[str | Path] = ["--build-constraints", ROOT / "requirements/tools.txt"]
    options = ["--quiet", "--require-hashes"]
    _uv_pip(scratch, "sync", *options, *constraints, ROOT / "requirements/runtime.txt")
    wheel = build_horovod.cached_wheel(VENV, BOOTSTRAP, ROOT / "requirements/horovod.txt")
    _uv_pip(scratch, "install", *_OFFLINE, wheel)
    # Compiled once here: Python workers on nodes, who may not write beside the sources, would each do it again.
    _link_compiled(site_packages(VENV), site_packages(scratch))
    compileall.compile_dir(site_packages(scratch), quiet=2)  # the rest; what compiles nowhere is left out
    compiled_archive.add_compiled(site_packages(scratch))
    scratch.rename(kept)
    say(f"    kept in {kept}")


def _link_compiled(have: Path, want: Path) -> None:
    """Links the compiled halves of those sources that two folders of packages share as hard links."""
    for compiled in have.rglob("__pycache__/*.pyc"):
        source = compiled.parents[1] / f"{compiled.name.split('.')[0]}.py"
        twin, target = want / source.relative_to(have), want / compiled.relative_to(have)
        if source.exists() and twin.exists() and source.samefile(twin) and not target.exists():
            target.parent.mkdir(exist_ok=True)
            os.link(compiled, target)


def _python() -> Path:
    """The interpreter that the environments here are made from, by its real path."""
    return Path(sys.executable).resolve()


def _uv_pip(folder: Path, command: str, *words: str | Path) -> None:
    run([BOOTSTRAP / "bin/uv", "pip", command, "--python", folder / "bin/python", *words])


def main(words: list[str]) -> None:
    """`python -m setup.environment <folder>`: the environment at its place, as an image wants it."""
    if len(words) != 1:
        raise SetupError("give one folder: python -m setup.environment /opt/nightrank/environment")
    folder = Path(words[0]).absolute()
    scratch = ROOT / "build"
    scratch.mkdir(exist_ok=True)
    make_environment(folder, build_wheel(ROOT, scratch))
    say(f"the environment is ready: {folder}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SetupError as error:
        sys.exit(fail(error))
