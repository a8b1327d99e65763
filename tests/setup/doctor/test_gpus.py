"""Driver, devices and what is built for them, against a driver library that is compiled from NVIDIA's header."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest

from setup.doctor import cuda_driver, gpus
from setup.doctor.findings import Finding
from setup.doctor.profile import Profile, read_profile

pytestmark = pytest.mark.processes

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    triton = pytest.importorskip("triton")
    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    command = [
        "gcc",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-I{headers}",
        "-o",
        path,
        HERE / "fake_cuda.c",
    ]
    subprocess.run(command, check=True)
    return str(path)


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    """train-gpu with a discovery script that prints one address."""
    return with_script(read_profile(["train-gpu"]), tmp_path, '{"name": "gpu", "addresses": ["0"]}')


def with_script(profile: Profile, folder: Path, output: str, exit_code: int = 0) -> Profile:
    script = folder / "find_gpus.sh"
    script.write_text(f"#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\necho '{output}'\nexit {exit_code}\n")
    script.chmod(0o755)
    return Profile(profile.names, {**profile.settings, gpus._SCRIPT: str(script)})


def found(profile: Profile, library: str, monkeypatch: pytest.MonkeyPatch, **variables: int) -> list[Finding]:
    for name, value in variables.items():
        # The library reads the environment of the process, which only os.environ changes.
        monkeypatch.setenv(f"FAKE_CUDA_{name.upper()}", str(value))
    monkeypatch.setattr(gpus, "read_driver", lambda: cuda_driver.read_driver(library))
    return list(gpus.gpus(profile))


def wrong(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.subject, finding.text) for finding in findings if not finding.fine]


def test_constants_are_those_of_the_header() -> None:
    triton = pytest.importorskip("triton")
    header = (Path(triton.__file__).parent / "backends/nvidia/include/cuda.h").read_text()
    for name, value in (
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_MODE", cuda_driver._COMPUTE_MODE),
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", cuda_driver._MAJOR),
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR", cuda_driver._MINOR),
        ("CUDA_ERROR_NO_DEVICE", cuda_driver._NO_DEVICE),
        *((f"CU_COMPUTEMODE_{name.upper()}", value) for value, name in cuda_driver.COMPUTE_MODES.items()
          if name != "exclusive"),
        ("CU_COMPUTEMODE_EXCLUSIVE_PROCESS", 3),
    ):  # fmt: skip
        assert any(line.split("/*")[0].split() in ([name, "=", f"{value},"], [name, "=", f"{value}"])
                   for line in header.splitlines()), name  # fmt: skip


def test_a_node_with_everything(profile: Profile, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = found(profile, library, monkeypatch)
    texts = [finding.text for finding in findings]
    assert texts[:2] == [
        "supports CUDA 13.0",
        "Fake H200, compute capability 9.0, 141 GiB, compute mode default",
    ]
    # This machine's /dev/shm may be small, which is a finding of its own.
    assert {subject for subject, _ in wrong(findings)} <= {"shared memory"}
    assert "discovery script" in [finding.subject for finding in findings]


def test_without_a_driver(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [subject for subject, _ in wrong(found(profile, "libcuda-absent.so.1", monkeypatch))] == [
        "GPU driver"
    ]


def test_a_driver_that_does_not_work(profile: Profile, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [(subject, text)] = wrong(found(profile, library, monkeypatch, init=803))
    assert subject == "GPU driver"
    assert "cuInit of the driver returned 803: system has unsupported display driver" in text


@pytest.mark.parametrize(
    "variables, subject, text",
    [
        ({"devices": 0}, "GPUs", "the driver shows 0, and an executor needs 1"),
        ({"devices": 2}, "discovery script", "prints 1 addresses, the driver shows 2"),
        ({"version": 11080}, "torch", "the driver supports 11.8"),
        ({"major": 3, "minor": 5}, "torch", "it has no code for Fake H200"),
        ({"mode": 2}, "GPU", "compute mode prohibited: no process may use it"),
    ],
)
def test_one_thing_is_wrong(
    profile: Profile,
    library: str,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, int],
    subject: str,
    text: str,
) -> None:
    mistakes = dict(wrong(found(profile, library, monkeypatch, **variables)))
    assert text in mistakes[subject]


@pytest.mark.parametrize("name, fine", [("train-gpu", True), ("score-gpu", False), ("etl-gpu", False)])
def test_an_exclusive_gpu_serves_one_process(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fine: bool
) -> None:
    shared = with_script(read_profile([name]), tmp_path, '{"addresses": ["0"]}')
    [of_device] = [entry for entry in found(shared, library, monkeypatch, mode=3) if entry.subject == "GPU"]
    assert of_device.fine == fine


@pytest.mark.parametrize(
    "output, exit_code, text",
    [
        ("", 9, "ended with exit code 9: NVIDIA-SMI has failed"),
        ("no JSON", 0, "printed no addresses"),
        ("[]", 0, "printed no addresses"),
    ],
)
def test_a_discovery_script_that_fails(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, exit_code: int, text: str
) -> None:
    broken = with_script(read_profile(["train-gpu"]), tmp_path, output, exit_code)
    assert text in dict(wrong(found(broken, library, monkeypatch)))["discovery script"]


def test_our_discovery_script_without_nvidia_smi(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real script, on a node whose driver has no tools."""
    trained = read_profile(["train-gpu"])
    script = Path(__file__).parents[3] / "conf/spark/find_gpus.sh"
    ours = Profile(trained.names, {**trained.settings, gpus._SCRIPT: str(script)})
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if os.path.exists("/usr/bin/nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    assert "exit code 127" in dict(wrong(found(ours, library, monkeypatch)))["discovery script"]


@pytest.mark.parametrize("major, fine", [(9, True), (6, False), (12, True)])
def test_the_accelerators_jar_says_for_which_gpus_it_is_built(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, major: int, fine: bool
) -> None:
    jar = tmp_path / "rapids-4-spark.jar"
    with ZipFile(jar, "w") as packed:
        packed.writestr(
            "cudf-java-version-info.properties", "version=25.04.0\ngpu_architectures=70;75;80;86;90\n"
        )
    base = with_script(read_profile(["etl-gpu"]), tmp_path, '{"addresses": ["0"]}')
    accelerated = Profile(base.names, {**base.settings, "spark.executor.extraClassPath": str(jar)})
    findings = found(accelerated, library, monkeypatch, major=major)
    assert ("accelerator" not in dict(wrong(findings))) == fine
    assert f"{jar} is built for the compute capabilities 70, 75, 80, 86, 90" in [
        finding.text for finding in findings
    ]


@pytest.mark.parametrize(
    "capability, architectures, runs",
    [
        ((9, 0), ["sm_90"], True),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((9, 0), ["sm_80", "compute_86"], True),
        ((10, 0), ["sm_90", "compute_90"], True),
        ((7, 5), ["compute_80"], False),
        ((10, 0), ["sm_100a"], True),
        ((9, 0), [], False),
    ],
)
def test_which_code_runs_on_which_gpu(
    capability: tuple[int, int], architectures: list[str], runs: bool
) -> None:
    assert gpus.runs_on(capability, architectures) == runs


def test_cpu_profiles_ask_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "read_driver", lambda: pytest.fail("no GPU is needed"))
    assert list(gpus.gpus(read_profile(["cpu"]))) == []
