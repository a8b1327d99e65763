"""A real job by spark-submit: standard output has the summary alone, and errors name a file of stacks."""

from __future__ import annotations

import gzip
import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.errors import InfrastructureError
from jobs import runner
from jobs.chain.launchers import Stage, Submission, environment
from spark.error_log import root_cause, without_frames
from storage.job_summary import JobSummary
from tests.cli.test_bad_input import CONFIG
from tests.faults.job_processes import DAYS, RUN_DATE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
# Larger than the libraries that Spark unpacks, smaller than the value counts of so many random texts.
_LIMIT_BYTES, _MANY = 1_536 * 1024, 150_000
_CATEGORICAL = {"columns": ["c"], "kind": "categorical", "ops": ["categorify"]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for day in DAYS:
        (tmp_path / f"raw/dt={day}").mkdir(parents=True)
        (tmp_path / f"raw/dt={day}/part-0.tsv").write_text("1\t2\ta\n0\t3\tb\n" * 50)
    values: dict[str, Any] = {**CONFIG, "features": [*CONFIG["features"], _CATEGORICAL]}
    values |= {"lake": str(tmp_path / "lake"), "data": str(tmp_path / "raw")}
    values["log"] = {**CONFIG["log"], "path": "{data}/dt={date}/*"}
    path = tmp_path / "streams.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def submit(
    config: Path, *words: str, preexec: Callable[[], None] | None = None, joined: bool = False
) -> subprocess.CompletedProcess[str]:
    submission = Submission(str(ROOT / "conf/spark/local.conf"), str(config), words)
    return subprocess.run(
        submission.command(Stage("build_features", RUN_DATE, config.parent / "unused.log")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if joined else subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**environment(), "TMPDIR": str(config.parent)},
        preexec_fn=preexec,
        timeout=240,
        check=False,
    )


def left_behind(config: Path) -> list[Path]:
    """The files of stacks in the folder of temporary files."""
    return list(config.parent.glob("*.stacks.log"))


def fill_disk() -> None:
    """Limits the size of files, which looks like a full disk to this process alone."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LIMIT_BYTES, _LIMIT_BYTES))


def test_standard_output_holds_one_line(config: Path) -> None:
    done = submit(config)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["job"] == "build_features"
    assert done.stdout == f"{line}\n"
    assert "nightrank: session …" in done.stderr
    assert '"job"' not in done.stderr
    assert left_behind(config) == []
    assert not (config.parent / "lake/logs").exists()


def test_streams_that_are_one_file_hold_the_summary_as_a_line(config: Path) -> None:
    """As schedulers and nightly keep them."""
    done = submit(config, joined=True)
    assert done.returncode == 0, done.stdout
    assert "nightrank: session …" in done.stdout
    log = config.parent / "stage.log"
    log.write_text(done.stdout)
    summary = JobSummary.in_log(log)
    assert summary is not None
    assert summary.job == "build_features"


def test_bad_configuration_is_told_on_standard_error(config: Path) -> None:
    done = submit(config, "trian.epochs=3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "build_features failed: " in done.stderr
    assert "unknown key trian" in done.stderr


def fail_on_a_full_disk(config: Path) -> tuple[str, Path]:
    """Standard error of a job that finds the disk full, and the file of stacks that it names."""
    draw = random.Random(7)
    lines = (f"{number % 2}\t{draw.getrandbits(30)}\t{draw.getrandbits(128):x}\n" for number in range(_MANY))
    (config.parent / f"raw/dt={DAYS[0]}/part-0.tsv").write_text("".join(lines))
    done = submit(config, preexec=fill_disk)
    assert done.returncode == 4, done.stderr
    assert done.stdout == ""
    failed, remedy, stacks = done.stderr[done.stderr.index("build_features failed in Spark") :].splitlines()[
        :3
    ]
    assert "File too large" in failed
    assert remedy.startswith("  what to do: ")
    assert stacks.startswith("  stacks: ")
    return done.stderr, Path(stacks.removeprefix("  stacks: "))


def assert_without_stacks(text: str) -> None:
    assert "\tat " not in text
    assert '  File "' not in text
    assert len(text.splitlines()) < 40, text


def assert_holds_stacks(path: Path) -> None:
    """Those of the JVM, and that of the job."""
    text = path.read_text()
    assert "\tat org.apache.spark." in text
    assert "OSError: [Errno 27]" in text
    assert 'jobs/runner.py", line ' in text


def test_a_full_disk_is_one_line_and_a_file(config: Path) -> None:
    message, stacks = fail_on_a_full_disk(config)
    assert_without_stacks(message)
    assert stacks.parent == config.parent / f"lake/logs/dt={RUN_DATE}"
    assert_holds_stacks(stacks)
    assert left_behind(config) == []


def test_where_the_lake_takes_no_file_it_is_a_temporary_one(config: Path) -> None:
    (config.parent / "lake").mkdir()
    (config.parent / "lake/logs").touch()  # a file, so that nothing can be written below it
    message, stacks = fail_on_a_full_disk(config)
    assert_without_stacks(message)
    assert left_behind(config) == [stacks]
    assert_holds_stacks(stacks)


def test_a_typed_error_of_a_worker_has_no_stack_in_front(config: Path) -> None:
    path = config.parent / f"raw/dt={DAYS[0]}/part-0.tsv"
    packed = gzip.compress("".join(f"1\t{number}\ta\n" for number in range(5_000)).encode())
    path.unlink()
    path.with_suffix(".tsv.gz").write_bytes(packed[: len(packed) // 2])
    done = submit(config)
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert_without_stacks(done.stderr)
    message = done.stderr[done.stderr.index("build_features failed") :]
    assert "part-0.tsv.gz" in message
    assert f"  stacks: {config.parent}/lake/logs/dt={RUN_DATE}/build_features-" in message


@pytest.mark.parametrize(
    "text, cause",
    [
        ("[Errno 28] No space left on device: '/x'", "ValueError: [Errno 28] No space left on device: '/x'"),
        ("", "ValueError"),
        (
            "An error occurred while calling o9.parquet.\n: org.apache.spark.SparkException: Job aborted\n"
            "\tat a.B.c(B.java:1)\nCaused by: a.FSError: java.io.IOException: full\n\tat a.B.c(B.java:1)\n"
            "Caused by: java.io.IOException: full\n\t... 3 more",
            "java.io.IOException: full",
        ),
        (
            "\n  An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in f\n    g()\nOSError: [Errno 28] full\n',
            "OSError: [Errno 28] full",
        ),
        (
            "An error occurred while calling o9.count.\n"
            ": org.apache.spark.SparkException: Job aborted: Lost task 0.0\n\tat a.B.c(B.java:1)",
            "ValueError: org.apache.spark.SparkException: Job aborted: Lost task 0.0",
        ),
    ],
)
def test_the_cause_is_one_line(text: str, cause: str) -> None:
    assert root_cause(ValueError(text)) == cause


def test_a_missing_interpreter_of_a_node_is_named() -> None:
    python = "/opt/nightrank/environment/bin/python"
    text = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        f': org.apache.spark.SparkException: Lost task 0.0: java.io.IOException: Cannot run program "{python}": '
        "error=2, No such file or directory\n\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1)"
    )
    advice = runner._advice(ValueError(text))
    assert advice.startswith(f"a node does not have {python}: install the packed environment there")
    assert "docs/clusters.md" in advice
    assert "full disk" in runner._advice(ValueError("No space left on device"))


def test_a_message_keeps_its_own_lines() -> None:
    text = (
        "training broke off: a.B: x\n\tat a.B.c(B.java:1)\n\tat java.base/a.B$1.<init>(B.java:1)\n"
        "\t... 2 more\n  what to do: look at it"
    )
    assert without_frames(text) == "training broke off: a.B: x\n  what to do: look at it"


def test_a_summary_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        with pytest.raises(
            InfrastructureError, match=r"cannot be written to standard output: .*No space left"
        ):
            runner._print("{}")
    with suppress(OSError):  # the line is still in the buffer
        full.close()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_process_with_a_closed_stream_ends_with_its_exit_code(closed: str) -> None:
    program = "from jobs.runner import end_process; end_process(3)"
    words = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program]
    assert subprocess.run(words, cwd=ROOT, env=environment(), check=False).returncode == 3


def test_a_missing_permission_has_its_remedy() -> None:
    assert runner._advice(PermissionError(13, "Permission denied")).startswith("give the user of the job")
