"""The GPU profiles with the real jar, on a real executor without a GPU: the only failure must be the missing
device.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.errors import EXIT_CONFIG
from spark.profile import read_properties
from tests.processes import ROOT, die_with_parent, environment, kill_tree, wait_for
from tests.standalone import Cluster, standalone_cluster

pytestmark = pytest.mark.processes

# The line of an exception in a log: `ai.rapids.cudf.CudaException: …`, also after `Caused by:`, or after `:`
# where Python prints it.
_EXCEPTION = re.compile(
    r"^(?:Caused by: |: )?((?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error)\b.*)$", re.MULTILINE
)
# Errors of a machine without a GPU: no driver, a driver without a device, or no nvidia-smi, which the plugin
# calls for its report.
_NO_DEVICE = re.compile(
    r"ai\.rapids\.cudf\.Cuda(?:Fatal)?Exception: .*cudaError(?:InsufficientDriver|NoDevice)"
    r"|java\.lang\.UnsatisfiedLinkError: .*libcuda\.so"
    r"|java\.io\.IOException: (?:Cannot run program \"nvidia-smi\": )?error=2, No such file or directory"
)
_STARTED = "the session has run a query"
# Every job builds its session like this.
_PROGRAM = f"""
from spark.session import build_session
spark = build_session("starts")
assert spark.range(1000).repartition(2).selectExpr("sum(id)").collect()[0][0] == 499500
print({_STARTED!r}, flush=True)
spark.stop()
"""


def failures(log: str) -> list[str]:
    """Returns the exceptions in a log, except those of a missing device."""
    return [exception for exception in _EXCEPTION.findall(log) if not _NO_DEVICE.match(exception)]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Starts a cluster of one worker with as many cores as the profiles' executors need. It declares GPUs."""
    folder = tmp_path_factory.mktemp("machine")
    with standalone_cluster(folder, workers=1, cores=16) as started:
        yield started
    shutil.rmtree(
        folder / "tmp", ignore_errors=True
    )  # the accelerator's native libraries, unpacked: gigabytes


def submitted(name: str, jar: Path, machine: Cluster) -> list[str]:
    """Returns a spark-submit command under a profile. It changes only the memory and the jar's path, for this
    machine.
    """
    profile = read_properties(ROOT / f"conf/spark/{name}.conf")
    scratch = machine.folder / "tmp"
    scratch.mkdir(exist_ok=True)
    changed = {
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.driver.extraClassPath": str(jar),
        "spark.executor.extraClassPath": str(jar),
        "spark.local.dir": str(
            scratch
        ),  # both sides are killed, and would leave what they unpacked elsewhere
    }
    for side in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        changed[side] = f"{profile[side]} -Djava.io.tmpdir={scratch}"
    program = machine.folder / "messages.py"
    program.write_text(_PROGRAM)
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", machine.master]
    command += ["--properties-file", str(ROOT / f"conf/spark/{name}.conf")]
    return [*command, *(f"--conf={key}={value}" for key, value in changed.items()), str(program)]


@pytest.mark.parametrize("name", ["etl-gpu", "score-gpu"])
def test_a_gpu_profile_fails_for_want_of_a_device_alone(
    name: str, jar: Path, machine: Cluster, tmp_path: Path
) -> None:
    before, driver_log = machine.applications(), tmp_path / "driver.log"

    def executor_log() -> str:
        new = sorted(set(machine.applications()) - set(before))
        return "\n".join(line for _, line in machine.log_lines("", new[0])) if new else ""

    with driver_log.open("wb") as log:
        process = subprocess.Popen(
            submitted(name, jar, machine),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        # Spark starts executors again and again: the first failure says all.
        ended = "MemoryStore cleared"
        wait_for(
            "the end of an executor or the driver",
            lambda: process.poll() is not None or ended in executor_log(),
            poll_s=0.2,
        )
    finally:
        kill_tree(process)
    of_driver, of_executor = driver_log.read_text(), executor_log()
    assert failures(of_driver) == [], of_driver[-3000:]
    assert failures(of_executor) == [], of_executor[-3000:]
    # Both sides loaded the accelerator: silence of one that had not would pass for success.
    for log_of_one in (of_driver, of_executor):
        assert re.search(r"RAPIDS Accelerator [\d.]+ using cudf", log_of_one), log_of_one[-3000:]
        assert "Rapids Shuffle Plugin enabled" in log_of_one, log_of_one[-3000:]
    assert _STARTED in of_driver or "Exception in the executor plugin" in of_executor, of_executor[-3000:]


def test_a_job_without_the_jar_ends_as_badly_configured(tmp_path: Path) -> None:
    program = tmp_path / "messages.py"
    program.write_text(
        "from jobs.runner import run_job\nfrom storage.job_summary import JobSummary\n"
        "run_job('starts', 'a job', lambda context: JobSummary(str(context.spark.range(1).count())))\n"
    )
    missing = tmp_path / "rapids-4-spark.jar"
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]"]
    command += ["--properties-file", str(ROOT / "conf/spark/etl-gpu.conf"), "--driver-memory", "1g"]
    command += ["--conf", f"spark.driver.extraClassPath={missing}", str(program)]
    command += ["--config", str(ROOT / "conf/datasets/generated.yaml"), "--run-date", "2026-01-08"]
    command += ["--set", f"lake={tmp_path / 'lake'}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == EXIT_CONFIG, output[-3000:]
    assert f"no jar with that class is at spark.driver.extraClassPath={missing}" in output
    assert "put the jar of the accelerator" in output


def test_other_failures_than_a_missing_device_are_seen() -> None:
    device = (
        "ai.rapids.cudf.CudaFatalException: Fatal CUDA error: 35 "
        "cudaErrorInsufficientDriver CUDA driver version\n"
    )
    missing = "java.lang.ClassNotFoundException: com.nvidia.spark.rapids.spark358.RapidsShuffleManager"
    assert (
        failures(f"26/11/23 ERROR X: Exception in the executor plugin\n{device}\tat a.B.c(D.java:1)\n") == []
    )
    assert failures(f"{device}\nCaused by: {missing}\n\tat a.B.c(D.java:1)\n") == [missing]
    memory = "ai.rapids.cudf.CudaException: out of memory cudaErrorMemoryAllocation"
    assert failures(f"{memory}\n") == [memory]
    assert (
        failures("py4j.protocol.Py4JJavaError: An error occurred\n: java.lang.NoClassDefFoundError: a/B\n")
        != []
    )
