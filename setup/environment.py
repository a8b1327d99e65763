"""Makes an environment that can be moved: locked packages, Horovod, our wheel and its compiled libraries.

The interpreter in the environment is a symbolic link to the Python that created the environment, so every
node must have that Python at the same path. No other file depends on the path of the environment. The locked
packages are installed once into a folder in the cache; environments share the files of this folder by hard
links.
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

# The lock files of this environment. The other files in requirements/ are for other environments.
LOCKS = ("runtime.txt", "horovod.txt")
_OFFLINE = ("--quiet", "--no-deps", "--no-index", "--offline", "--compile-bytecode")
# Imports that must succeed. Packages that only tests, benchmarks and builds use are not in this environment,
# so it is smaller than .venv.
CHECK_IMPORTS = (
    "import jobs.features_of_run, scoring.spark.score_frames, training.launch.rank_main, horovod.torch;"
    "from etl.native.library import library; library()"
)


# The packages of the wheel. nightrank is the interface for other programs.
PACKAGES = (
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


def build_wheel(root: Path, out: Path) -> Path:
    """Builds a wheel of our packages and their data files in the folder `out`.

    Equal sources result in a wheel with equal bytes.
    """
    scratch = out / "wheel-build"
    shutil.rmtree(scratch, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in PACKAGES:
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
    # A fixed time, in the first year that zip files can store.
    run(command, env={**os.environ, "SOURCE_DATE_EPOCH": "315619200"})
    shutil.rmtree(scratch)
    (wheel,) = out.glob("nightrank-*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path) -> None:
    """Makes the environment in this folder. Replaces an existing folder.

    Raises:
        SetupError: a package is missing or cannot be imported.
    """
    base = kept_packages()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(base, folder, symlinks=True, copy_function=os.link)
    except (OSError, shutil.Error):  # the cache is on another file system
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder, symlinks=True)
    _uv_pip(folder, "install", *_OFFLINE, wheel)
    build_native.build(ROOT, folder)
    # Run this in the folder `/`, so that Python does not find the modules of the checkout instead.
    capture([folder / "bin/python", "-W", "ignore", "-c", CHECK_IMPORTS], cwd=Path("/"))


def kept_packages() -> Path:
    """Returns the folder of the environment without our wheel. Makes it if the cache does not have it."""
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
    # Compile the sources once here. On nodes, Python workers often cannot write to the folders of the
    # sources, so each worker would compile them again.
    _link_compiled(site_packages(VENV), site_packages(scratch))
    compileall.compile_dir(site_packages(scratch), quiet=2)  # compiles all files that are left
    compiled_archive.add_compiled(site_packages(scratch))
    scratch.rename(kept)
    say(f"    kept in {kept}")


def _link_compiled(have: Path, want: Path) -> None:
    """If two package folders share a source file by a hard link, hard-links its compiled file as well."""
    for compiled in have.rglob("__pycache__/*.pyc"):
        source = compiled.parents[1] / f"{compiled.name.split('.')[0]}.py"
        twin, target = want / source.relative_to(have), want / compiled.relative_to(have)
        if source.exists() and twin.exists() and source.samefile(twin) and not target.exists():
            target.parent.mkdir(exist_ok=True)
            os.link(compiled, target)


def _python() -> Path:
    """The real path of the interpreter that the environments are made from."""
    return Path(sys.executable).resolve()


def _uv_pip(folder: Path, command: str, *words: str | Path) -> None:
    run([BOOTSTRAP / "bin/uv", "pip", command, "--python", folder / "bin/python", *words])


def main(words: list[str]) -> None:
    """`python -m setup.environment <folder>`: makes the environment at its final path, for an image."""
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
