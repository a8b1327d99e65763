"""Checks the driver, the GPUs and the libraries built for them, for a profile whose executors have GPUs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from setup.doctor.cuda_driver import Device, Driver, DriverError, read_driver
from setup.doctor.findings import Finding
from setup.doctor.profile import Profile

_SCRIPT = "spark.executor.resource.gpu.discoveryScript"
_SCRIPT_LIMIT_S = 30
_LEAST_SHARED_BYTES = 2**30
_LOCKED = "install the packages of the lock file (`make setup`)"
_BUILT_FOR = re.compile(r"gpu_architectures=([\d;]+)")


def gpus(profile: Profile) -> Iterator[Finding]:
    """Checks the driver and the devices, and that torch and the accelerator are built for them."""
    if not profile.wants_gpus:
        return
    try:
        driver = read_driver()
    except DriverError as error:
        yield Finding("GPU driver", str(error), "install NVIDIA's driver; in a container, request a GPU")
        return
    yield Finding("GPU driver", f"supports CUDA {_version(driver.cuda)}")
    wanted = float(profile.get("spark.executor.resource.gpu.amount") or 0)
    if len(driver.devices) < wanted:
        yield Finding(
            "GPUs",
            f"the driver shows {len(driver.devices)}, and an executor needs {wanted:g}",
            f"request GPUs for this container, or correct CUDA_VISIBLE_DEVICES={_visible()}",
        )
    for device in driver.devices:
        yield _of_device(device, profile)
    if profile.torch_on_gpus:
        yield from _torch(driver)
    if profile.accelerated:
        yield from _accelerator(profile, driver.devices)
    yield from _discovery(profile, len(driver.devices))


def _of_device(device: Device, profile: Profile) -> Finding:
    text = (
        f"{device.name}, compute capability {_version(device.capability)}, "
        f"{device.memory_bytes / 2**30:.0f} GiB, compute mode {device.compute_mode}"
    )
    remedy = "nvidia-smi --compute-mode=DEFAULT"
    if device.compute_mode == "prohibited":
        return Finding("GPU", f"{text}: no process may use it", remedy)
    shared = float(profile.get("spark.task.resource.gpu.amount") or 1) < 1 or profile.accelerated
    if device.compute_mode == "exclusive" and shared:
        return Finding("GPU", f"{text}, and several processes of this profile share a GPU", remedy)
    return Finding("GPU", text)


def _torch(driver: Driver) -> Iterator[Finding]:
    import torch

    built = torch.version.cuda
    if built is None:
        yield Finding("torch", f"{torch.__version__} is built without CUDA", _LOCKED)
        return
    needed = int(built.split(".")[0])
    if driver.cuda[0] < needed:
        yield Finding(
            "torch",
            f"{torch.__version__} is built with CUDA {built}, the driver supports {_version(driver.cuda)}",
            f"install a driver for CUDA {needed}",
        )
        return
    yield Finding("torch", f"{torch.__version__}, built with CUDA {built}")
    architectures = (torch._C._cuda_getArchFlags() or "").split()
    for device in driver.devices:
        if not runs_on(device.capability, architectures):
            yield Finding(
                "torch",
                f"it has no code for {device.name} ({', '.join(architectures)})",
                "use a GPU in this list, or build an environment with another torch",
            )
    if torch.distributed.is_nccl_available():
        yield Finding("NCCL", _version(torch.cuda.nccl.version()))
        yield from _shared_memory()
    else:
        yield Finding("NCCL", "this torch has none", _LOCKED)


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Returns whether code for these architectures runs on a GPU of this compute capability.

    Compiled code (`sm_80`) runs on GPUs of the same major version and the same or a later minor version.
    Intermediate code (`compute_80`) runs on all later GPUs (CUDA C++ Programming Guide, "Compute
    capability").
    """
    for architecture in architectures:
        kind, _, digits = architecture.partition("_")
        number = int(re.sub(r"\D", "", digits))
        major, minor = divmod(number, 10)
        if kind == "compute" and (major, minor) <= capability:
            return True
        if kind == "sm" and major == capability[0] and minor <= capability[1]:
            return True
    return False


def _accelerator(profile: Profile, devices: Sequence[Device]) -> Iterator[Finding]:
    """Checks that the RAPIDS Accelerator is compiled for the GPUs. Its jar lists compute capabilities."""
    entries = (profile.get("spark.executor.extraClassPath") or "").split(":")
    jar = next((Path(entry) for entry in entries if "rapids" in Path(entry).name), None)
    if jar is None or not jar.is_file():
        return  # reported by setup.doctor.software.accelerator
    try:
        with ZipFile(jar) as packed:
            built = _BUILT_FOR.search(packed.read("cudf-java-version-info.properties").decode())
    except (BadZipFile, KeyError, OSError):
        built = None
    numbers = [number for number in built[1].split(";") if number] if built else []
    if not numbers:
        yield Finding("accelerator", f"{jar} does not say for which GPUs it is built; this was not checked")
        return
    listed = ", ".join(numbers)
    yield Finding("accelerator", f"{jar} is built for the compute capabilities {listed}")
    # For the last compute capability, RAPIDS also builds intermediate code (rapids-cmake,
    # rapids_cuda_set_architectures).
    code = [*(f"sm_{number}" for number in numbers), f"compute_{numbers[-1]}"]
    for device in devices:
        if not runs_on(device.capability, code):
            remedy = "install a release that supports this GPU: docs/gpu.md"
            yield Finding("accelerator", f"{jar} has no code for {device.name} ({listed})", remedy)


def _discovery(profile: Profile, devices: int) -> Iterator[Finding]:
    """Checks that the discovery script prints as many addresses as there are devices."""
    script = profile.get(_SCRIPT)
    if script is None:
        return
    remedy = f"copy conf/spark/find_gpus.sh to {script} and make it executable"
    if not os.access(script, os.X_OK):
        what = "is not executable" if Path(script).exists() else "does not exist"
        yield Finding("discovery script", f"{script} {what}", remedy)
        return
    try:
        ran = subprocess.run([script], capture_output=True, text=True, check=True, timeout=_SCRIPT_LIMIT_S)
        addresses = json.loads(ran.stdout)["addresses"]
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("discovery script", f"{script} ended with exit code {error.returncode}: {last}", remedy)
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        yield Finding("discovery script", f"{script} printed no addresses: {error}", remedy)
    else:
        if len(addresses) == devices:
            yield Finding("discovery script", f"{script} prints {devices} addresses")
        else:
            yield Finding(
                "discovery script",
                f"{script} prints {len(addresses)} addresses, the driver shows {devices}",
                remedy,
            )


def _shared_memory() -> Iterator[Finding]:
    """Checks /dev/shm, through which NCCL's ranks of one node exchange data. Containers often get 64 MiB."""
    stats = os.statvfs("/dev/shm")
    size = stats.f_frsize * stats.f_blocks
    text = f"/dev/shm has {size / 2**20:,.0f} MiB"
    if size < _LEAST_SHARED_BYTES:
        yield Finding(
            "shared memory", f"{text}, and NCCL needs more", "start the container with --shm-size=1g"
        )
    else:
        yield Finding("shared memory", text)


def _version(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


def _visible() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "(not set)")
