"""Bad input to jobs: exit code, a message with file, key and remedy, and no half result."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from jobs.chain.launchers import environment
from jobs.runner import run_job
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from tests.faults.job_processes import DAYS, RUN_DATE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]

CONFIG: dict[str, Any] = {
    "name": "bad",
    "log": {
        "path": "{data}/dt={date}/*.tsv",
        "format": "tsv",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "n", "type": "int"},
            {"name": "c", "type": "string"},
        ],
        "label": {"column": "label"},
    },
    "features": [{"columns": ["n"], "kind": "dense", "ops": ["normalize"]}],
    "split": {"by": "day", "train_days": 2},
    "model": {"architecture": "dlrm"},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A good configuration over four good days; each test spoils one thing."""
    for day in DAYS:
        (tmp_path / f"raw/dt={day}").mkdir(parents=True)
        (tmp_path / f"raw/dt={day}/part-0.tsv").write_text("1\t2\ta\n0\t3\tb\n" * 50)
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "lake": str(tmp_path / "lake"), "data": str(tmp_path / "raw")}))
    return path


def _start(job: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the job as a process of Python, without spark-submit."""
    command = [sys.executable, str(ROOT / f"jobs/{job}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=120)


def run_here(job: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the job in this process, which saves the imports of a new process."""
    module, words = import_module(f"jobs.{job}"), [str(word) for word in arguments]
    root, code = logging.getLogger(), None
    handlers, level = root.handlers[:], root.level
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        try:
            if job in ("nightly", "demo"):
                code = module.main(words)
            else:
                run_job(job, module.DESCRIPTION, module.run, words)
        except SystemExit as ended:
            code = ended.code
        finally:
            root.handlers = handlers
            root.setLevel(level)
    assert isinstance(code, int)
    return subprocess.CompletedProcess([job, *words], code, output.getvalue(), errors.getvalue())


def _build(config: Path, *more: str, run_date: str = RUN_DATE) -> subprocess.CompletedProcess[str]:
    return run_here("build_features", "--config", config, "--run-date", run_date, *more)


def _assert_refused(ended: subprocess.CompletedProcess[str], exit_code: int, *texts: str) -> None:
    """The exit code, every text and the remedy are there; stack trace, summary and session are not."""
    assert ended.returncode == exit_code, ended.stderr
    for text in (*texts, "what to do: "):
        assert text in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "session" not in ended.stderr
    assert ended.stdout == ""


def test_a_wrong_key(config: Path) -> None:
    config.write_text(config.read_text() + "trian: {epochs: 3}\n")
    words = ("--config", config, "--run-date", RUN_DATE)
    texts = (str(config), "unknown key trian", "correct these keys")
    for run in (_start, run_here):  # only this test runs build_features both ways
        _assert_refused(run("build_features", *words), 2, *texts)


def test_a_wrong_setting_of_the_model_ends_a_run_before_its_first_stage(config: Path) -> None:
    words = ("--config", config, "--run-date", RUN_DATE, "--retrain", "--set", "model.bottom_mpl=[8]")
    _assert_refused(run_here("nightly", *words), 2, "unknown key model.bottom_mpl=[8]", "'bottom_mlp'")
    assert not (config.parent / "lake").exists()


def test_a_wrong_override(config: Path) -> None:
    _assert_refused(_build(config, "--set", "train.epoch=3"), 2, "unknown key train.epoch=3", "--set")


def test_an_unknown_operator(config: Path) -> None:
    features = "features=[{columns: [n], kind: dense, ops: [sqrt]}]"
    _assert_refused(_build(config, "--set", features), 2, "unknown operator 'sqrt'", "'normalize'")


@pytest.mark.parametrize("name", ["user_key", "row_id", "a.b"])
def test_a_column_named_like_ours_or_with_a_dot(config: Path, name: str) -> None:
    columns = [*CONFIG["log"]["columns"], {"name": name, "type": "string"}]
    ended = _build(config, "--set", f"log.columns={json.dumps(columns)}")
    _assert_refused(ended, 2, f"columns names ['{name}']", "source")


def test_a_missing_config(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    _assert_refused(_build(path), 2, f"cannot read {path}", "give the path of a YAML file that exists")


@pytest.mark.parametrize(
    "date, remedy",
    [
        ("2026-02-30", "write it as YYYY-MM-DD"),
        ("20260104", "write 2026-01-04"),
        ("2062-01-04", "add --future if the log has such dates on purpose"),
    ],
)
def test_a_bad_date(config: Path, date: str, remedy: str) -> None:
    _assert_refused(_build(config, run_date=date), 2, f"--run-date '{date}'", remedy)


def test_a_run_starts_from_any_folder_and_through_links(config: Path, tmp_path: Path) -> None:
    """The configuration is relative to the working directory, and the Spark profile is the project's."""
    (tmp_path / "project").symlink_to(ROOT)
    (tmp_path / "start.py").symlink_to(tmp_path / "project/jobs/nightly.py")
    words = ["--config", config.name, "--run-date", "never", "--isolate"]
    ended = subprocess.run(
        [sys.executable, "start.py", *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    _assert_refused(ended, 2, "--run-date 'never'", "write it as YYYY-MM-DD")


@pytest.mark.parametrize("job", ["nightly", "build_features", "demo"])
def test_a_profile_of_a_cluster_on_another_machine(config: Path, job: str, tmp_path: Path) -> None:
    """spark-submit would end with a Java stack trace."""
    profile = tmp_path / "cluster.conf"
    profile.write_text("spark.master=local[2]\nspark.pyspark.python=/absent/environment/bin/python\n")
    words = [] if job == "demo" else ["--config", config, "--run-date", RUN_DATE]
    ended = run_here(job, *words, "--profile", profile)
    named = f"{profile} has spark.pyspark.python=/absent/environment/bin/python, which does not exist"
    _assert_refused(ended, 2, named, "docs/clusters.md")


def test_a_profile_by_a_wrong_name(config: Path) -> None:
    _assert_refused(_build(config, "--profile", "lokal"), 2, "profile lokal does not exist", "local, on-")


def test_a_missing_argument(config: Path) -> None:
    ended = run_here("build_features", "--config", config)
    assert ended.returncode == 2
    assert "--run-date" in ended.stderr


def test_a_missing_raw_path(config: Path, tmp_path: Path) -> None:
    ended = _build(config, "--set", f"data={tmp_path}/elsewhere")
    _assert_refused(
        ended,
        3,
        f"{tmp_path}/elsewhere/dt={RUN_DATE}/*.tsv",
        "log.path",
        f"deliver the raw files of {RUN_DATE}",
    )


def test_too_few_days(config: Path, tmp_path: Path) -> None:
    (tmp_path / f"raw/dt={DAYS[2]}/part-0.tsv").unlink()
    _assert_refused(_build(config), 3, f"no raw log for ['{DAYS[2]}']", "deliver the raw logs of these days")


def test_an_empty_day(config: Path, tmp_path: Path) -> None:
    (tmp_path / f"raw/dt={RUN_DATE}/part-0.tsv").write_bytes(b"")
    _assert_refused(
        _build(config),
        3,
        f"dt={RUN_DATE}/*.tsv are empty (0 bytes)",
        f"deliver the raw files of {RUN_DATE} again",
    )


def test_training_before_there_are_features(config: Path) -> None:
    ended = run_here("train_model", "--config", config, "--run-date", RUN_DATE)
    _assert_refused(
        ended, 3, f"datasets has no published partition dt={RUN_DATE}", "run the job that writes datasets"
    )


def test_a_third_of_a_day_that_does_not_parse(config: Path, tmp_path: Path) -> None:
    """The day is refused, no feature is published, and its bad lines are in quarantine."""
    raw = tmp_path / f"raw/dt={DAYS[1]}/part-0.tsv"
    raw.write_text("1\t2\ta\n0\tthree\tb\n0\t3\tc\n" * 30)
    ended = _start("build_features", "--config", config, "--run-date", RUN_DATE)
    log_text = ended.stderr
    assert ended.returncode == 3, log_text[-3000:]
    assert ended.stdout == ""
    lake = LakePaths(str(tmp_path / "lake"))
    partition = lake.quarantine.partition(DAYS[1])
    for text in (
        f"30 of 90 rows of {DAYS[1]} do not parse (33.3%; quality.max_bad_share=5.0%)",
        "integer:n",
        str(raw),
        f"{raw}: line 2: n has the value 'three', which is not an integer of 64 bits",
        "what to do: for the reason integer:n: give n the type string in log.columns",
        f"All rejected rows are in {partition.path}",
    ):
        assert text in log_text
    manifest = read_manifest(partition)
    assert (manifest.rows_in, manifest.rows, manifest.dropped) == (90, 30, {"integer:n": 30})
    kept = pq.read_table(data_files(partition, manifest)[0], partitioning=None).to_pylist()
    assert kept[0] == {
        "row_id": 1,
        "source_file": str(raw),
        "line_number": 2,
        "reason": "integer:n",
        "line": "0\tthree\tb",
    }
    written = {path.name for path in (tmp_path / "lake").iterdir()}
    assert written - {"runs", "spark-events"} == {"_data", "quarantine", "value_counts"}
