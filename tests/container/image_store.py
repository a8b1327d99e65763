"""Builds the images of container/Dockerfile with buildah, on a base that debootstrap makes. Needs root, no registry.

The recipe's base is an image of a registry: Python built from source on Debian's slim image. The base that is
made here has the same Debian release and the same packages of it, but Debian's own Python, which has the same
minor version. Its headers are unpacked without libc6-dev, as in the registry's image, so a stage that lacks a
package for compiling fails here too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from setup.install import ROOT
from setup.jars import accelerator
from tests.container.dockerfile import parse, stages

DOCKERFILE = ROOT / "container/Dockerfile"
BASE = "localhost/nightrank-base:latest"
USER = 10001
_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

# What the registry's image has besides Debian's smallest system.
_INSTALL = """
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q install --yes --no-install-recommends ca-certificates netbase tzdata python3.11 python3.11-venv
update-ca-certificates
cd /tmp
apt-get -q download libpython3.11-dev
dpkg-deb -x libpython3.11-dev_*.deb headers
mkdir -p /usr/include
cp -a headers/usr/include/. /usr/include/
for name in python python3 python3.11; do ln -s /usr/bin/python3.11 "/usr/local/bin/$name"; done
rm -rf headers ./*.deb /var/lib/apt/lists/* /var/cache/apt/*.bin
apt-get clean
"""
_BASE_RECIPE = f"""FROM scratch
ADD root /
ENV LANG=C.UTF-8 PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
ENV SSL_CERT_FILE={_BUNDLE} PIP_CERT={_BUNDLE}
"""
# Runs the words after the third in a container's root file system ($1), read-only but for /tmp, with the folder $2 at /lake.
_READ_ONLY = """
set -eu
root=$1 lake=$2 user=$3
shift 3
hostname localhost
mkdir -p "$root/lake"
echo '127.0.0.1 localhost' > "$root/etc/hosts"
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp"
chmod 1777 "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$lake" "$root/lake"
exec chroot --userspec="$user:$user" "$root" "$@"
"""


class ImageStore:
    """A folder with buildah's images and containers.

    Args:
        folder: the folder. If it is on a disk that is too small, buildah fails with its own message.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        places = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        self._buildah = ["buildah", *places, "--storage-driver", "overlay"]

    def buildah(self, *words: str | Path) -> str:
        """Returns the standard output of a command. Its messages go to this process's standard error.

        Raises:
            subprocess.CalledProcessError: the command failed.
        """
        command = [*self._buildah, *map(str, words)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    def has(self, image: str) -> bool:
        """Returns whether the store has an image of this name."""
        command = [*self._buildah, "images", "--quiet", image]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def make_base(self) -> None:
        """Makes the image that takes the place of the recipe's base, unless the store has it."""
        if self.has(BASE):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            system = Path(scratch) / "root"
            subprocess.run(["debootstrap", "--variant=minbase", debian_release(), system], check=True)
            # Certificates that this machine trusts in addition, such as that of a company's proxy.
            if _CERTIFICATES.is_dir():
                shutil.copytree(_CERTIFICATES, system / _CERTIFICATES.relative_to("/"), dirs_exist_ok=True)
            subprocess.run(["chroot", system, "/bin/bash", "-c", _INSTALL], check=True)
            recipe = Path(scratch) / "Dockerfile"
            recipe.write_text(_BASE_RECIPE)
            self.buildah("build", "--isolation", "chroot", "--file", recipe, "--tag", BASE, scratch)

    def build(self, target: str) -> str:
        """Builds a stage of the recipe and returns the name of its image. Unchanged layers are not built again."""
        image = f"localhost/nightrank:{target}"
        words = ["build", "--isolation", "chroot", "--layers", "--target", target, "--tag", image]
        words += ["--build-context", f"{recipe_base()}=container-image://{BASE}"]
        words += ["--build-context", f"jars={accelerator().path.parent}"]
        self.buildah(*words, "--file", DOCKERFILE, ROOT)
        return image

    def run(
        self, image: str, *command: str, lake: Path | None = None, variables: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command by the image's entry point, as the image's user, in a fresh container.

        Args:
            image: the image.
            command: the words after the entry point; none means the image's own command.
            lake: a folder of this machine that is mounted at /lake.
            variables: environment variables, such as "NAME=value".
        """
        container = self.buildah("from", image).strip()
        try:
            described = json.loads(self.buildah("inspect", container))["OCIv1"]["config"]
            # Under Docker and Kubernetes a container can resolve its own host name. Under buildah's chroot only
            # localhost has an address.
            words = ["run", "--isolation", "chroot", "--hostname", "localhost"]
            words += ["--volume", f"{lake}:/lake"] if lake else []
            words += [word for variable in variables for word in ("--env", variable)]
            words += [container, "--", *described["Entrypoint"], *(command or described["Cmd"])]
            return subprocess.run([*self._buildah, *words], capture_output=True, text=True, check=False)
        finally:
            self.buildah("rm", container)

    def run_read_only(self, image: str, *command: str, lake: Path) -> subprocess.CompletedProcess[str]:
        """Runs a command as `run` does, with a read-only root file system and an empty /tmp.

        The pod templates set readOnlyRootFilesystem. buildah has no option for it, so this method mounts the
        file system of a fresh container itself, in a mount namespace of its own.
        """
        container = self.buildah("from", image).strip()
        try:
            described = json.loads(self.buildah("inspect", container))["OCIv1"]["config"]
            root = self.buildah("mount", container).strip()
            words = [
                "unshare",
                "--mount",
                "--uts",
                "bash",
                "-c",
                _READ_ONLY,
                "bash",
                root,
                str(lake),
                str(USER),
            ]
            words += ["env", "-i", "--chdir", described["WorkingDir"], *described["Env"]]
            words += [*described["Entrypoint"], *command]
            return subprocess.run(words, capture_output=True, text=True, check=False)
        finally:
            self.buildah("umount", container)
            self.buildah("rm", container)

    def remove(self) -> None:
        """Deletes the folder with all images."""
        subprocess.run([*self._buildah, "rm", "--all"], capture_output=True, check=False)
        subprocess.run([*self._buildah, "rmi", "--all", "--force"], capture_output=True, check=False)
        # The storage library mounts its own folder and leaves it mounted.
        subprocess.run(["umount", self._folder / "storage/overlay"], capture_output=True, check=False)
        shutil.rmtree(self._folder)


def recipe_base() -> str:
    """Returns the image that the recipe's first stage begins with."""
    return next(iter(stages(parse(DOCKERFILE.read_text())).values())).base


def debian_release() -> str:
    """Returns the name of the Debian release in the tag of the recipe's base."""
    return recipe_base().partition("@")[0].rpartition("-")[2]


def check_machine() -> None:
    """Fails the test if this machine cannot build images."""
    if os.geteuid() != 0:
        pytest.fail("debootstrap and buildah's chroot need root: sudo make image-test")
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is missing: apt-get install buildah debootstrap")
