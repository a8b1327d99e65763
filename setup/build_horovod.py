"""Builds Horovod from its PyPI source archive for the torch in .venv, and keeps the wheel in the cache.

The last release of Horovod cannot be compiled for torch 2.1 or later, which needs C++17. Horovod's rendezvous
server also executes code of attackers who can reach its port (CVE-2024-10190, CVE-2026-31234). The patches in
setup/horovod correct both problems. The text at the beginning of each patch explains the patch:

    torch.patch             builds with a current torch; the wheel works in any environment
    interface.patch         process sets use the network interface that the launcher chooses
    signed-requests.patch   servers accept only requests signed with the job's key, and listen on one address
    command-lifetime.patch  horovod.spark.run no longer sleeps for 3 s at its end
    sleep-while-waiting.patch  a thread that waits for a collective sleeps instead of polling

With a CUDA build of torch, Horovod's CMake needs a complete CUDA toolkit. The Python packages of torch and of
requirements/build.in contain the files of this toolkit; this module arranges them as the compiler expects.
Horovod can be built and imported without a GPU and without an installed CUDA.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from setup import horovod_patches
from setup.compile_log import compile_logged
from setup.console import SetupError, cache_folder, capture, run, say
from setup.preflight import python_headers

# Variables of Horovod's build, for CPU and CUDA builds of torch.
OPTIONS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
}
CUDA_OPTIONS = {
    "HOROVOD_GPU_OPERATIONS": "NCCL",
    "HOROVOD_BUILD_CUDA_CC_LIST": "80,90",  # compute capabilities: 8.0 is A100, 9.0 is H100 and H200
}

VERIFY = """
import torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.arange(4.0), op=hvd.Sum)
assert torch.equal(total, torch.arange(4.0) * hvd.size()), total
assert hvd.gloo_built(), "built without Gloo"
assert bool(hvd.nccl_built()) == (torch.version.cuda is not None), "NCCL does not match torch"
hvd.shutdown()
"""


def digest_of(value: object) -> str:
    """16 hex digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class BuildInputs:
    """All inputs on which Horovod's wheel depends. The digest names the wheel's folder in the cache."""

    requirement: str  # Horovod's version and the hashes of its sdist
    torch: str  # with the local version part, such as 2.13.0+cu130
    cuda: str | None  # None for a CPU build of torch
    nccl: str | None
    python_abi: str
    platform: str
    compiler: str
    recipe: str  # digest of the patches and the options

    def digest(self) -> str:
        """The digest of all inputs of a build, which names the wheel's folder in the cache."""
        return digest_of(asdict(self))


def inputs_of(venv: Path, requirement_file: Path) -> BuildInputs:
    """The inputs of a build for this environment on this machine."""
    environment = json.loads(capture([venv / "bin/python", "-c", _DESCRIBE]))
    lines = requirement_file.read_text().splitlines()
    changes = [asdict(change) for change in horovod_patches.read_changes()]
    return BuildInputs(
        requirement=" ".join(line.strip(" \\") for line in lines if not line.lstrip().startswith("#")),
        compiler=capture([compiler(), "-dumpfullversion", "-dumpmachine"]).strip(),
        recipe=digest_of([changes, OPTIONS, CUDA_OPTIONS]),
        **environment,
    )


_DESCRIBE = """
import importlib.metadata, json, platform, sysconfig, torch
cuda = torch.version.cuda
packages = importlib.metadata.distributions()
nccl = [package.version for package in packages if package.metadata["Name"].startswith("nvidia-nccl-cu")]
print(json.dumps({
    "torch": torch.__version__,
    "cuda": cuda,
    "nccl": nccl[0] if cuda and nccl else None,
    "python_abi": sysconfig.get_config_var("SOABI"),
    "platform": " ".join([platform.machine(), *platform.libc_ver()]),
}))
"""


def compiler() -> str:
    """The C++ compiler: $CXX, or g++."""
    return os.environ.get("CXX", "g++")


def cached_wheel(venv: Path, bootstrap: Path, requirement_file: Path) -> Path:
    """Returns Horovod's wheel for this environment, from the cache if possible.

    Builds the wheel if the cache does not have it. This takes 2 to 4 minutes on 2 cores.

    Raises:
        SetupError: the build failed. The message contains the cause, if it is known, and the end of the log.
    """
    inputs = inputs_of(venv, requirement_file)
    kept = cache_folder() / "horovod" / inputs.digest()
    for wheel in kept.glob("*.whl"):
        say(f"    using the wheel built before: {wheel}")
        return wheel
    log = cache_folder() / "horovod" / "logs" / f"{inputs.digest()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="horovod-") as scratch:
        wheel = _build(Path(scratch), venv, bootstrap, requirement_file, inputs, log)
        return _keep(wheel, kept, inputs)


def _build(
    scratch: Path, venv: Path, bootstrap: Path, requirement_file: Path, inputs: BuildInputs, log: Path
) -> Path:
    source = fetch_source(scratch, bootstrap, requirement_file)
    horovod_patches.apply(source, horovod_patches.read_changes())
    environment = build_environment(scratch, venv, inputs)
    out = scratch / "wheel"
    pip = [*pip_of(bootstrap), "--python", str(venv / "bin/python")]
    options = ["--verbose", "--no-build-isolation", "--no-deps", "--no-cache-dir", "--wheel-dir", str(out)]
    kind = f"CUDA {inputs.cuda} and NCCL {inputs.nccl}" if inputs.cuda else "CPU only"
    say(f"    compiling Horovod against torch {inputs.torch} ({kind}), 2 to 4 minutes on 2 cores; log: {log}")
    compile_logged([*pip, "wheel", *options, source], environment, log)
    (wheel,) = out.glob("*.whl")
    return wheel


def pip_of(bootstrap: Path) -> list[str]:
    """The command of the pip in the bootstrap environment."""
    return [str(bootstrap / "bin/python"), "-m", "pip", "--disable-pip-version-check"]


def fetch_source(scratch: Path, bootstrap: Path, requirement_file: Path) -> Path:
    """Downloads Horovod's source archive, checks its hash and unpacks it. Returns the folder of sources."""
    # Even if pip only downloads a source archive, it builds the metadata of the archive. The packages that it
    # needs for this are in the bootstrap environment.
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    run([*pip_of(bootstrap), "--quiet", "download", *options, "--dest", scratch, "-r", requirement_file])
    (archive,) = scratch.glob("horovod-*.tar.gz")
    shutil.unpack_archive(archive, scratch)
    return scratch / archive.name.removesuffix(".tar.gz")


def build_environment(scratch: Path, venv: Path, inputs: BuildInputs) -> dict[str, str]:
    """Returns the environment variables for Horovod's build.

    The user's own variables for Horovod, CUDA and NCCL are left out.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "CUDA", "NCCL"))
    }
    environment |= {
        "PATH": f"{venv / 'bin'}:{environment['PATH']}",
        "CXX": compiler(),
        "MAKEFLAGS": f"-j{parallel_jobs()}",
        **OPTIONS,
    }
    headers = python_headers()
    if headers is not None:
        environment["CPLUS_INCLUDE_PATH"] = f"{headers / 'python3.11'}:{headers}"
    if inputs.cuda is not None:
        environment |= cuda_environment(scratch, venv, environment["PATH"])
    return environment


def cuda_environment(scratch: Path, venv: Path, path: str) -> dict[str, str]:
    """Returns environment variables for a build with CUDA and NCCL, and arranges their files in `scratch`."""
    nvidia = nvidia_packages(venv)
    toolkit = lay_out_toolkit(nvidia, scratch / "cuda")
    nccl = scratch / "nccl"
    nccl.mkdir()
    (nccl / "libnccl.so").symlink_to(nvidia / "nccl/lib/libnccl.so.2")
    return {
        "PATH": f"{toolkit / 'bin'}:{path}",
        "CUDACXX": str(toolkit / "bin/nvcc"),
        "CUDAToolkit_ROOT": str(toolkit),
        "CUDA_HOME": str(toolkit),
        "HOROVOD_CUDA_HOME": str(toolkit),
        "HOROVOD_NCCL_INCLUDE": str(nvidia / "nccl/include"),
        "HOROVOD_NCCL_LIB": str(nccl),
        **CUDA_OPTIONS,
    }


def nvidia_packages(venv: Path) -> Path:
    """The folder of NVIDIA's Python packages."""
    (folder,) = venv.glob("lib/python3.*/site-packages/nvidia")
    return folder


def lay_out_toolkit(nvidia: Path, toolkit: Path) -> Path:
    """Arranges the files of NVIDIA's Python packages as a CUDA toolkit.

    Creates folders, and symbolic links to the files. nvcc looks for its libraries in ../lib64, relative to
    the real path of its folder, so the folder `bin` itself must not be a link.
    """
    shutil.copytree(nvidia / "cu13", toolkit, copy_function=os.symlink)
    (toolkit / "lib64").symlink_to("lib")
    runtime = toolkit / "lib/libcudart.so"
    if not runtime.exists():
        runtime.symlink_to("libcudart.so.13")
    return toolkit


def parallel_jobs() -> int:
    """The number of parallel compilers: one per core, but at most one per 2 GB of memory."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1000**3
    return max(1, min(len(os.sched_getaffinity(0)), memory_gb // 2))


def _keep(wheel: Path, kept: Path, inputs: BuildInputs) -> Path:
    """Atomically moves the wheel into the cache, together with a file that lists the inputs of its build."""
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="new-") as folder:
        staged = Path(folder) / "wheel"
        staged.mkdir()
        shutil.copy(wheel, staged)
        (staged / "built-against.json").write_text(json.dumps(asdict(inputs), indent=2) + "\n")
        if not kept.exists():  # another set-up may have built the same wheel in the meantime
            staged.rename(kept)
    return kept / wheel.name


def verify(venv: Path) -> None:
    """Imports Horovod and reduces a tensor in one process.

    Raises SetupError with the error output if that fails.
    """
    # Use the loopback interface. Otherwise Gloo resolves the host's name, which fails in some containers.
    environment = {**os.environ, "HOROVOD_GLOO_IFACE": "lo"}
    command = [str(venv / "bin/python"), "-W", "ignore", "-c", VERIFY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(
            f"Horovod was installed but does not work (exit code {done.returncode}):\n{done.stderr}"
        )
    say("    Horovod can be imported and reduces a tensor in one process")
