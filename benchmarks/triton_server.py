"""Runs Triton Inference Server on loopback, without a GPU, for tests and benchmarks.

The server is that of the package nvidia-pytriton, in an environment below the cache folder that is installed from
requirements/test-triton.txt. It has the Python backend, and neither that of ONNX Runtime nor that of TensorRT.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from local_airflow.home import free_port
from setup.locked_environment import locked_environment

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/test-triton.txt"
POLL_S = 1
_PATIENCE_S = 60


class Unavailable(Exception):
    """The reason why the server cannot run models on this machine."""


def environment() -> Path:
    """Returns the folder of the server's environment. The first call installs it (24 s, 0.6 GB).

    Raises:
        SetupError: it cannot be installed.
    """
    return locked_environment(
        "triton", LOCK, "import onnxruntime, pyarrow, tritonclient.grpc.model_config_pb2"
    )


@contextmanager
def triton_server(repository: Path, variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """Runs a server of a model repository, which it reads again every POLL_S seconds.

    Args:
        repository: its folder.
        variables: additional environment variables of the server.

    Returns:
        The URL of its HTTP endpoint, which is ready.

    Raises:
        Unavailable: this version of Python has no shared library.
        SetupError: the environment cannot be installed.
        RuntimeError: the server does not start; the message has the end of its log.
    """
    _require_shared_library()
    packages = environment() / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    server = packages / "pytriton/tritonserver"
    with tempfile.TemporaryDirectory(prefix="nightrank-triton-") as folder:
        backends, log = Path(folder, "backends"), Path(folder, "log")
        _link_backend(server, backends / "python")
        port = free_port()
        command: list[str | Path] = [server / "bin/tritonserver", "--model-repository", repository]
        command += ["--http-address", "127.0.0.1", "--http-port", str(port)]
        command += ["--allow-grpc", "false", "--allow-metrics", "false"]
        command += ["--backend-directory", backends, "--pinned-memory-pool-byte-size", "0"]
        command += ["--model-control-mode", "poll", "--repository-poll-secs", str(POLL_S)]
        command += ["--disable-auto-complete-config"]  # configurations are complete
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_variables(packages), **(variables or {})},
            )
        try:
            _wait(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(process)


def _require_shared_library() -> None:
    """Raises Unavailable if libpython, which the program that runs models needs, is missing for this Python."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR"), f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"]
    if not any(Path(folder, name).exists() for folder in folders):
        raise Unavailable(
            f"{name} is in none of {folders}: `apt-get install libpython3.11` installs Debian's"
        )


def _link_backend(server: Path, target: Path) -> None:
    """Makes a folder of the Python backend, with the program that runs models of this version of Python."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    target.mkdir(parents=True)
    for path in (
        *(server / "backends/python").iterdir(),
        server / f"python_backend_stubs/{version}/triton_python_backend_stub",
    ):
        (target / path.name).symlink_to(path)


def _variables(packages: Path) -> dict[str, str]:
    """Returns the variables of the server. Its models import the package nightrank of this checkout."""
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith("PYTHON")},
        "PATH": f"{environment() / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{sysconfig.get_config_var('LIBDIR')}:{packages / 'nvidia_pytriton.libs'}",
        "PYTHONPATH": str(ROOT),
        # A new __pycache__ in a model's folder would make the server load the model again.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > end:
            lines = log.read_text(errors="replace").splitlines()
            messages = "\n".join(line for line in lines if not line.startswith(("|", "+")))  # without tables
            raise RuntimeError(f"tritonserver did not start:\n{messages[-3000:]}")
        time.sleep(0.05)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Lets the server end the processes of its models. Ends it if this takes too long."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
