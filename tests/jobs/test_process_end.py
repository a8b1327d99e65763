"""A job without a JVM ends at once: with its exit code, all of its output, and no temporary files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jobs.runner import end_job
from tests.cli.test_bad_input import CONFIG

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent
# Freeing the object, or waiting for the thread, would print a line or take a minute.
SCRIPT = """
import atexit, sys, threading, time
from pathlib import Path
from pyspark import SparkContext
from jobs.runner import end_job

class Freed:
    def __del__(self):
        print("freed")

kept = Freed()
sys.argv[0] = {argv!r}
SparkContext._gateway = {gateway}
atexit.register(Path({leftover!r}).unlink)
print("output", end="")
print("errors", end="", file=sys.stderr)
end_job(4)
"""


def run(tmp_path: Path, argv: str, gateway: str = "None") -> subprocess.CompletedProcess[str]:
    leftover = tmp_path / "leftover"
    leftover.touch()
    script = SCRIPT.format(argv=argv, gateway=gateway, leftover=str(leftover))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert not leftover.exists()
    return done


def test_a_job_ends_without_freeing_its_objects(tmp_path: Path) -> None:
    done = run(tmp_path, "jobs/build_features.py")
    assert (done.returncode, done.stdout, done.stderr) == (4, "output", "errors")


@pytest.mark.parametrize(
    "argv, gateway", [("jobs/build_features.py", "object()"), ("notebook.py", "None"), ("-c", "None")]
)
def test_a_job_with_a_jvm_or_another_program_ends_as_usual(tmp_path: Path, argv: str, gateway: str) -> None:
    done = run(tmp_path, argv, gateway)
    assert (done.returncode, done.stdout) == (4, "outputfreed\n")


POOL = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
from jobs.runner import end_job
from spark.fork_server import without_main_module

sys.argv[0] = "jobs/build_features.py"
pool = ProcessPoolExecutor(2, multiprocessing.get_context("forkserver"))
with without_main_module():
    futures = [pool.submit(time.sleep, seconds) for seconds in (0, 0.3)]
futures[0].result()
pool.shutdown(wait=False, cancel_futures=True)
end_job(4)
"""


def test_a_pool_that_still_ends_its_processes_does_not_block_the_end() -> None:
    """The pool's thread and multiprocessing's function for `atexit` wait for the same processes."""
    done = subprocess.run(
        [sys.executable, "-c", POOL], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "")


def test_in_another_program_it_is_an_exception() -> None:
    with pytest.raises(SystemExit) as ended:
        end_job(3)
    assert ended.value.code == 3


INTERRUPTED = """
import sys
from jobs.command_line import job_parser, run_without_session
from jobs.runner import run_job

def interrupt(context):
    raise KeyboardInterrupt

if sys.argv.pop() == "session":
    run_job("my_job", "", interrupt)
sys.exit(run_without_session("my_job", job_parser("my_job", "").parse_args(), interrupt))
"""


@pytest.mark.parametrize("kind", ["session", "no session"])
def test_ctrl_c_ends_a_job_with_one_message(kind: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**CONFIG, "lake": str(tmp_path / "lake")}))
    words = ["--config", str(config), "--run-date", "2026-01-08", kind]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert "my_job was interrupted\n  what to do: start it again" in done.stderr
    assert "Traceback" not in done.stderr
