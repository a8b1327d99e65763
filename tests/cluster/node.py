"""A machine with nothing of ours but the unpacked archive of `make dist`, from which jobs are submitted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from setup import java_home
from setup.dist import make_dist
from setup.pack import entries, pack
from tests.cluster.chain import CONFIG, overrides
from tests.processes import die_with_parent, kill_tree


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    exit_code: int
    log: str


@dataclass(frozen=True)
class Node:
    """A machine that has what the archive holds, unpacked, and nothing else of ours."""

    folder: Path
    variables: dict[str, str]

    @property
    def python(self) -> Path:
        return self.folder / "environment/bin/python"

    def run(self, command: str, disturb: Callable[[], None] | None = None, timeout_s: float = 240) -> Ended:
        """Runs a command as a user of the archive would; `disturb` is called meanwhile.

        Its processes are gone at the end.
        """
        log = self.folder / "printed.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-euc", f". setup/env.sh\n{command}"],
                cwd=self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        try:
            if disturb is not None:
                disturb()
            return Ended(process.wait(timeout=timeout_s), log.read_text())
        finally:
            kill_tree(process)

    def submit(
        self,
        job: str,
        run_date: str,
        profile: Path,
        lake: Path,
        *more: str,
        disturb: Callable[[], None] | None = None,
    ) -> Ended:
        """Runs a job by spark-submit, with more words of its own."""
        settings = " ".join(f"--set '{override}'" for override in overrides(lake))
        words = f"spark-submit --properties-file {profile} {' '.join(more)} jobs/{job}.py"
        return self.run(f"{words} --config {CONFIG} --run-date {run_date} {settings}", disturb)

    def thin_environment(self, folder: Path) -> Path:
        """An archive of an environment that has a link to Python and uses the packages of the node.

        Every executor would unpack the real environment again, for a minute. tests/setup test such an
        archive.
        """
        thin = folder / "thin"
        make = [str(self.python.resolve()), "-m", "venv", "--without-pip", "--symlinks", str(thin)]
        subprocess.run(make, check=True)
        environment = self.folder / "environment"
        (packages,) = environment.glob("lib/python3.*/site-packages")
        (thin / packages.relative_to(environment) / "borrowed.pth").write_text(f"{packages}\n")
        with (folder / "thin.tar.gz").open("wb") as out:
            pack(thin, entries(thin), out)
        return folder / "thin.tar.gz"


@contextmanager
def unpacked_archive(folder: Path) -> Iterator[Node]:
    """Makes the archive and unpacks it in this folder. Deletes the folder at the end, because it is large."""
    try:
        archive = make_dist(folder / "dist")
        unpacked = folder / archive.stem
        inner = f"{archive.stem}/environment.tar.gz"
        # The environment straight from the archive, 3 GB that are not written in between, and by a faster
        # gzip than tar's: that tar -xz reads such a file is tests/setup/test_dist.py's business.
        for command in (
            f"tar -C {folder} -xf {archive} --exclude={inner}",
            f"mkdir {unpacked}/environment",
            f"tar -xOf {archive} {inner} | {sys.executable} -m isal.igzip -d "
            f"| tar -C {unpacked}/environment -x",
        ):
            subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True)
        shutil.rmtree(folder / "dist")
        home = folder / "home"
        home.mkdir()
        variables = {"PATH": "/usr/bin:/bin", "HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        java = java_home.find()
        if java is not None:
            variables["JAVA_HOME"] = str(java)
        yield Node(unpacked, variables)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
