from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from setup import build_horovod, compile_log
from setup.console import SetupError

pytestmark = pytest.mark.processes

INPUTS = build_horovod.BuildInputs(
    requirement="horovod==0.28.1 --hash=sha256:92a4",
    torch="2.13.0+cu130",
    cuda="13.0",
    nccl="2.29.7",
    python_abi="cpython-311-x86_64-linux-gnu",
    platform="x86_64 glibc 2.36",
    compiler="12.2.0\nx86_64-linux-gnu",
    recipe="0123",
)


@pytest.mark.parametrize("field", list(INPUTS.__dataclass_fields__))
def test_every_input_names_another_wheel(field: str) -> None:
    assert replace(INPUTS, **{field: "another"}).digest() != INPUTS.digest()


def test_digest_is_stable() -> None:
    assert replace(INPUTS).digest() == INPUTS.digest()


def test_toolkit_has_real_folders_and_linked_files(tmp_path: Path) -> None:
    bin_folder, lib = tmp_path / "nvidia/cu13/bin", tmp_path / "nvidia/cu13/lib"
    for folder in (bin_folder, lib):
        folder.mkdir(parents=True)
    (bin_folder / "nvcc").write_text("compiler")
    (lib / "libcudart.so.13").write_text("runtime")
    toolkit = build_horovod.lay_out_toolkit(tmp_path / "nvidia", tmp_path / "cuda")
    assert not (toolkit / "bin").is_symlink()
    assert (toolkit / "bin/nvcc").is_symlink()
    assert (toolkit / "bin/nvcc").read_text() == "compiler"
    assert (toolkit / "lib64/libcudart.so").read_text() == "runtime"


@pytest.fixture
def environment_with_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_horovod, "python_headers", lambda: None)


@pytest.mark.usefixtures("environment_with_headers")
def test_a_cpu_torch_gets_no_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "MPI")
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda-11")
    environment = build_horovod.build_environment(tmp_path, tmp_path, replace(INPUTS, cuda=None, nccl=None))
    assert not {"HOROVOD_GPU_OPERATIONS", "CUDA_HOME", "CUDACXX"} & set(environment)
    assert environment["HOROVOD_WITH_GLOO"] == "1"


@pytest.mark.usefixtures("environment_with_headers")
def test_a_cuda_torch_gets_nccl_and_the_toolkit_before_any_other(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.11/site-packages/nvidia/cu13/lib").mkdir(parents=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = build_horovod.build_environment(scratch, tmp_path, INPUTS)
    assert environment["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert environment["PATH"].split(":")[:2] == [str(scratch / "cuda/bin"), str(tmp_path / "bin")]
    assert environment["HOROVOD_CUDA_HOME"] == environment["CUDA_HOME"] == str(scratch / "cuda")


@pytest.mark.parametrize(
    "line,advice",
    [
        ("torch/python.h:3:10: fatal error: Python.h: No such file or directory", "python3.11-dev"),
        ("/usr/bin/ld: final link failed: No space left on device", "the disk is full"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "memory ran out"),
        ("No CMAKE_CXX_COMPILER could be found.", "apt-get install g++"),
        ("something nobody has seen", "the cause is unknown"),
    ],
)
def test_a_failed_build_says_why_and_where(line: str, advice: str, tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    script = f"seq 100; echo '{line}'; echo compilation terminated; exit 1"
    with pytest.raises(SetupError) as caught:
        compile_log.compile_logged(["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, log)
    message = str(caught.value)
    assert advice in message
    assert str(log) in message
    assert line in message
    assert "\n    50\n" not in message, "the end of the log is enough"
    assert log.read_text().startswith("1\n2\n")


def test_last_percentage(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("-- Configuring\n")
    assert compile_log.last_percentage(log) == 0
    log.write_text(
        "[  3%] Building a\n" + "warning\n" * 1000 + "[ 48%] Building b\n[100%] Linking c\nnoise\n"
    )
    assert compile_log.last_percentage(log) == 100


def test_a_kept_wheel_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build_horovod, "inputs_of", lambda venv, requirement_file: INPUTS)
    builds = []

    def build(scratch: Path, *_: object) -> Path:
        builds.append(scratch)
        built = scratch / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
        built.write_text("wheel")
        return built

    monkeypatch.setattr(build_horovod, "_build", build)
    wheel = build_horovod.cached_wheel(tmp_path, tmp_path, tmp_path)
    assert build_horovod.cached_wheel(tmp_path, tmp_path, tmp_path) == wheel
    assert len(builds) == 1
    assert wheel.read_text() == "wheel"
    assert json.loads((wheel.parent / "built-against.json").read_text())["torch"] == "2.13.0+cu130"
