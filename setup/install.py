"""Makes .venv: the locked packages, our own folders on its path, and a Horovod built for its torch.

Run this module as `python -m setup.install` in the folder of the checkout. If the lock files and the scripts
in setup/ have not changed since .venv was made, it does nothing and ends in less than a second.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from setup import build_horovod, build_native, class_archive, compiled_archive, horovod_patches, preflight
from setup.console import SetupError, capture, fail, locked, run, say, step

ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = ROOT / ".bootstrap"
VENV = ROOT / ".venv"
STAMP = VENV / "setup.stamp"
LOCK = ROOT / ".setup.lock"  # two processes must not install at the same time
LOCKS = ("runtime.txt", "tools.txt", "benchmark.txt")

# The packages need 7 GB, and Horovod's build needs 1 GB for a short time. The package cache shares its
# files with the environment by hard links if both are on the same file system.
ENVIRONMENT_BYTES = 9 * 1024**3

# `setup` is this package. If it can be imported from another folder, so can our other packages.
CHECK_IMPORTS = (
    "import pyspark, petastorm, pyarrow, pandas, mlflow, pydantic, safetensors, matplotlib, setup.install;"
    "from etl.native.library import library; library()"
)
_OWN_PATH = "nightrank.pth"
_COMMAND = "from nightrank.command import main\n\nsys.exit(main())"


def fingerprint(root: Path, made_in: Path | None = None) -> str:
    """Returns the digest of all inputs of the environment.

    The path of the checkout is one of these inputs: installed scripts contain the absolute path of their
    interpreter, so a checkout that was moved needs a new environment.

    Args:
        root: the checkout.
        made_in: the checkout that made the environment, if it is not `root`.
    """
    digest = hashlib.sha256(f"{made_in or root}\n{sys.version}\n".encode())
    scripts = [*(root / "requirements").glob("*.txt"), *(root / "setup").glob("*.py")]
    patches = horovod_patches.patch_files(root / "setup/horovod")
    for path in [*sorted(scripts), *patches, *build_native.all_sources(root)]:
        digest.update(f"{path.name}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def make_venv(folder: Path, *options: str) -> None:
    """Makes a virtual environment in this folder, unless the folder already has a working one.

    The folder may be a symbolic link, for example to a larger disk.

    Raises:
        SetupError: the link leads to a folder with other files.
    """
    python = folder / "bin" / "python"
    if python.exists() and _lives_at(python, folder):
        return
    target = folder.resolve()  # Python's venv does not accept a symbolic link
    if (
        folder.is_symlink()
        and target.is_dir()
        and any(target.iterdir())
        and not (target / "pyvenv.cfg").exists()
    ):
        raise SetupError(
            f"{folder} is a symbolic link to {target}, which contains other files: "
            "make it a link to an empty folder, or delete it"
        )
    shutil.rmtree(target, ignore_errors=True)
    run([sys.executable, "-m", "venv", *options, target])


def _lives_at(python: Path, folder: Path) -> bool:
    """Whether the environment works, has this version of Python, and was made in this folder (not moved)."""
    try:
        version = capture([python, "-c", "import sys; print(sys.version)"]).strip()
    except (SetupError, OSError):
        return False
    made_by = (folder / "pyvenv.cfg").read_text().split("command = ", 1)[-1].strip()
    return version == sys.version and made_by.endswith((str(folder), str(folder.resolve())))


def other_owner(venv: Path, root: Path) -> Path | None:
    """Returns the other checkout that made the environment; None if `root` made it."""
    path = site_packages(venv) / _OWN_PATH
    if not venv.is_symlink() or not path.is_file():
        return None
    owner = Path(path.read_text().strip())
    return owner if owner != root and owner.is_dir() else None


def install_bootstrap() -> None:
    """Makes .bootstrap, the environment that installs the others."""
    make_venv(BOOTSTRAP)
    options = ["--quiet", "--require-hashes", "-r", str(ROOT / "requirements/bootstrap.txt")]
    run([*build_horovod.pip_of(BOOTSTRAP), "install", *options])


def uv_pip(command: str, *words: str | Path) -> None:
    """Runs `uv pip` on .venv."""
    run([BOOTSTRAP / "bin/uv", "pip", command, "--python", VENV / "bin/python", *words])


def install_packages() -> None:
    """Makes .venv with the locked packages."""
    make_venv(VENV, "--without-pip")
    # pyspark is published only as source code, so the packages that build it are locked too.
    constraints = ["--build-constraints", str(ROOT / "requirements/tools.txt")]
    locks = [ROOT / "requirements" / name for name in LOCKS]
    # Compile all packages once here. Otherwise, if PYTHONDONTWRITEBYTECODE is set, every process would
    # compile torch again, which takes half a minute.
    uv_pip("sync", "--require-hashes", "--compile-bytecode", *constraints, *locks)


def install_own_packages() -> None:
    """Puts the checkout on the environment's path, so that Spark's Python workers import our packages too.

    The function writes a .pth file, and the command `nightrank`. With an editable install, Python would find
    only the packages that exist at the time of the install.
    """
    (site_packages(VENV) / _OWN_PATH).write_text(f"{ROOT}\n")
    command = VENV / "bin/nightrank"
    command.write_text(f"#!{VENV}/bin/python\nimport sys\n\n{_COMMAND}\n")
    command.chmod(0o755)


def site_packages(venv: Path) -> Path:
    """The folder of packages of an environment."""
    return venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def install_horovod() -> None:
    """Installs Horovod from the cache, builds it if necessary, and verifies it."""
    wheel = build_horovod.cached_wheel(VENV, BOOTSTRAP, ROOT / "requirements/horovod.txt")
    uv_pip("install", "--quiet", "--no-deps", "--no-index", "--reinstall-package", "horovod", wheel)
    build_horovod.verify(VENV)


def install(root: Path) -> None:
    """Makes .venv from the beginning."""
    with step("checking this machine"):
        preflight.check_machine(root, 0 if (VENV / "bin").exists() else ENVIRONMENT_BYTES, VENV.resolve())
        preflight.python_headers()
    with step("installing the installer (.bootstrap)"):
        install_bootstrap()
    with step("installing the locked packages (.venv, 7 GB)"):
        install_packages()
        compiled_archive.add_compiled(site_packages(VENV))
        install_own_packages()
    with step("installing Horovod"):
        install_horovod()
    with step("compiling the loops over text and rows"):
        build_native.build(root, VENV)
    with step("importing what was installed"):
        run([VENV / "bin/python", "-W", "ignore", "-c", CHECK_IMPORTS], cwd=Path("/"))
    with step("archiving the classes that Spark loads"):
        archive_classes(root)


def archive_classes(root: Path) -> None:
    """Makes the archive of Java classes with which jobs start faster. They also work without it."""
    java_home = capture([VENV / "bin/python", root / "setup/java_home.py"]).strip()
    if trouble := class_archive.make(root, VENV, Path(java_home)):
        say(f"    the archive could not be made, so each job starts 2 s later: {trouble}")


def main() -> int:
    """Makes .venv unless it is up to date, and returns the exit code.

    If .venv is a link to the environment of another checkout, that environment must have been made from the
    same files. It is never changed.
    """
    owner = other_owner(VENV, ROOT)
    wanted = fingerprint(ROOT, owner)
    if is_current(wanted):
        return 0
    try:
        if owner is not None:
            raise SetupError(
                f"{VENV} is a symbolic link to the environment of {owner}, which was made from other "
                f"lock files or scripts of setup/: run `make setup` in {owner} if its files are the same, "
                "or remove the link"
            )
        with locked(LOCK):
            if is_current(wanted):  # another process may have made .venv during the wait for the lock
                return 0
            STAMP.unlink(missing_ok=True)
            install(ROOT)
            STAMP.write_text(wanted)
    except SetupError as error:
        return fail(error)
    say(f"the environment is ready: {VENV}")
    return 0


def is_current(wanted: str) -> bool:
    """Whether .venv was made from the files that have this digest."""
    return STAMP.is_file() and STAMP.read_text() == wanted


if __name__ == "__main__":
    sys.exit(main())
