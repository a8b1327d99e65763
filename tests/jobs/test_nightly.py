"""nightly with small programs in place of spark-submit and of the application: order, exit codes, logs, ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.errors import EXIT_CONFIG, ConfigError, InfrastructureError
from conf.load import load_config
from jobs import nightly
from jobs.chain import launchers, run_chain
from jobs.chain.steps import RunPlan
from reporting.monitoring.prometheus import run_text
from reporting.monitoring.run_record import read_records
from reporting.terminal import StageProgress
from storage import file_io
from storage.job_summary import JobSummary
from storage.leases import lease
from storage.paths import LakePaths
from tests.etl.lakes import servers
from tests.reporting.report_lake import RUN_DATE, publish_facts

pytestmark = pytest.mark.processes
FAR = "2062-01-04"

# Records its call, then behaves as plan.json says for the job.
STUB_PROGRAM = """#!{python} -S
import json, os, signal, subprocess, sys, time
from pathlib import Path
folder = Path({folder!r})
job = next(Path(word).stem for word in sys.argv if word.endswith(".py"))
with open(folder / "calls.jsonl", "a") as calls:
    call = {{"job": job, "words": sys.argv[1:], "spark_home": os.environ.get("SPARK_HOME")}}
    calls.write(json.dumps(call) + "\\n")
plan = json.loads((folder / "plan.json").read_text()).get(job, {{}})
print(plan.get("said", ""), file=sys.stderr)
if "hang" in plan:
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & wait; wait"])
    (folder / "pids").write_text(f"{{os.getpid()}} {{child.pid}}")
    time.sleep(600)
if "signal" in plan:
    os.kill(os.getpid(), plan["signal"])
if plan.get("exit", 0):
    sys.exit(plan["exit"])
counts = {{"rows_in": 10, "rows_out": 9, "dropped": {{"bad": 1}}}}
print(json.dumps({{"job": job, **counts, "seconds": {{"total": 0.5}}, "output": "out"}}))
print("shutdown noise", file=sys.stderr)
"""

# The same, but for the process of an application, which runs one stage after the other.
STUB_APPLICATION = """#!{python} -S
import json, os, signal, subprocess, sys, time
from pathlib import Path
folder, profile, answers = Path({folder!r}), sys.argv[1], int(sys.argv[2])
with open(folder / "starts.jsonl", "a") as starts:
    starts.write(json.dumps({{"pid": os.getpid(), "modules": sys.argv[3:]}}) + "\\n")
for line in sys.stdin:
    request = json.loads(line)
    job = request["job"]
    words = ["--properties-file", profile, job + ".py", *request["arguments"]]
    with open(folder / "calls.jsonl", "a") as calls:
        call = {{"job": job, "words": words, "spark_home": os.environ.get("SPARK_HOME"), "pid": os.getpid()}}
        calls.write(json.dumps(call) + "\\n")
    plan = json.loads((folder / "plan.json").read_text()).get(job, {{}})
    print(plan.get("said", ""), file=sys.stderr, flush=True)
    if "hang" in plan:
        child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & wait; wait"])
        (folder / "pids").write_text(f"{{os.getpid()}} {{child.pid}}")
        time.sleep(600)
    if "signal" in plan:
        os.kill(os.getpid(), plan["signal"])
    counts = {{"rows_in": 10, "rows_out": 9, "dropped": {{"bad": 1}}}}
    summary = json.dumps({{"job": job, **counts, "seconds": {{"total": 0.5}}, "output": "out"}})
    exit_code = plan.get("exit", 0)
    answer = {{"exit_code": exit_code, "summary": None if exit_code else summary}}
    os.write(answers, json.dumps(answer).encode() + b"\\n")
"""


class SparkSubmitStub:
    """A program in place of spark-submit, one in place of the application, and the stages that they ran."""

    def __init__(self, folder: Path, *, isolate: bool) -> None:
        self.folder = folder
        self.isolate = isolate
        self.lake = folder / "lake"
        self.program = folder / "spark-submit"
        self.program.write_text(STUB_PROGRAM.format(python=sys.executable, folder=str(folder)))
        self.program.chmod(0o755)
        self.application = folder / "application"
        self.application.write_text(STUB_APPLICATION.format(python=sys.executable, folder=str(folder)))
        self.application.chmod(0o755)
        self.plan({})

    def plan(self, jobs: dict[str, Any]) -> None:
        """Sets what the program does for each job."""
        (self.folder / "plan.json").write_text(json.dumps(jobs))

    def calls(self) -> list[dict[str, Any]]:
        """The calls so far, in order."""
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]

    def starts(self) -> list[dict[str, Any]]:
        """The applications that were started so far, in order."""
        started = self.folder / "starts.jsonl"
        return list(map(json.loads, started.read_text().splitlines())) if started.exists() else []

    def arguments(self, *more: str) -> list[str]:
        """Arguments of nightly for this lake."""
        base = [
            "--config",
            "conf/datasets/generated.yaml",
            "--run-date",
            RUN_DATE,
            "--set",
            "train.refit=false",
            "--set",
            f"lake={self.lake}",
        ]
        return [*base, *more, *(["--isolate"] if self.isolate else [])]


@pytest.fixture(params=["one application", "isolated"])
def submit_stub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> SparkSubmitStub:
    stub = SparkSubmitStub(tmp_path, isolate=request.param == "isolated")
    monkeypatch.setattr(launchers, "spark_submit", lambda: stub.program)
    monkeypatch.setattr(launchers, "_PROGRAM", (str(stub.application),))
    return stub


def test_an_ordinary_run_has_its_stages_in_order_and_ends_with_a_summary(
    submit_stub: SparkSubmitStub, capsys: Any
) -> None:
    assert nightly.main(submit_stub.arguments("--set", "score.k=7")) == 0
    calls = submit_stub.calls()
    assert [call["job"] for call in calls] == ["build_features", "build_candidates", "score_daily", "report"]
    for call in calls:
        assert call["words"][:2] == ["--properties-file", "conf/spark/local.conf"]
        assert call["words"][-10:-6] == ["--config", "conf/datasets/generated.yaml", "--run-date", RUN_DATE]
        assert call["words"][-1] == "score.k=7"
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["job"] == "nightly"
    assert summary["run_date"] == RUN_DATE
    assert summary["dropped"] == {"bad": 1}
    assert set(summary["seconds"]) == {"build_features", "build_candidates", "score_daily", "report", "total"}


def test_retraining_adds_training_and_the_gate_and_sets_the_mode_for_build_features_alone(
    submit_stub: SparkSubmitStub,
) -> None:
    assert nightly.main(submit_stub.arguments("--retrain")) == 0
    calls = submit_stub.calls()
    jobs = ["build_features", "train_model", "evaluate_model", "build_candidates", "score_daily", "report"]
    assert [call["job"] for call in calls] == jobs
    assert ["workflow.mode=retrain" in call["words"] for call in calls] == [True] + [False] * 5


def test_the_retriever_is_trained_on_the_ranker_s_features_where_candidates_are_retrieved(
    submit_stub: SparkSubmitStub,
) -> None:
    source = "candidates.sources=[{source: retrieval, model: ../models/two_tower_small.yaml}]"
    assert nightly.main(submit_stub.arguments("--set", source, "--retrain")) == 0
    jobs = ["build_features", "train_model", "train_retriever", "evaluate_model", "build_candidates"]
    assert [call["job"] for call in submit_stub.calls()][:5] == jobs
    wrong = source.replace("../models/two_tower_small.yaml", "{architecture: two_tower, towers: 3}")
    assert nightly.main(submit_stub.arguments("--set", wrong, "--retrain")) == 2
    assert len(submit_stub.calls()) == 7


def test_no_retriever_is_trained_where_the_ranking_model_retrieves(submit_stub: SparkSubmitStub) -> None:
    settings = ["candidates.sources=[{source: retrieval}]", "model=../models/two_tower_small.yaml"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert nightly.main(submit_stub.arguments(*words, "--retrain")) == 0
    jobs = ["build_features", "train_model", "evaluate_model", "build_candidates"]
    assert [call["job"] for call in submit_stub.calls()][:4] == jobs


def test_the_promoted_model_is_refitted_after_the_gate_and_before_the_lists(
    submit_stub: SparkSubmitStub,
) -> None:
    assert nightly.main(submit_stub.arguments("--set", "train.refit=true", "--retrain")) == 0
    jobs = ["build_features", "train_model", "evaluate_model", "refit_model", "build_candidates"]
    assert [call["job"] for call in submit_stub.calls()][:5] == jobs
    assert nightly.main(submit_stub.arguments("--set", "train.refit=true")) == 0
    assert [call["job"] for call in submit_stub.calls()].count("refit_model") == 1  # not without --retrain


@pytest.mark.parametrize(
    "promoted, versions, again", [(False, "ab", True), (False, "aa", False), (True, "ab", False)]
)
def test_features_are_applied_again_for_a_champion_kept_with_another_workflow(
    submit_stub: SparkSubmitStub, promoted: bool, versions: str, again: bool
) -> None:
    champion, challenger = ({"workflow_version": version} for version in versions)
    facts = {"promoted": promoted, "champion": champion, "challenger": challenger}
    publish_facts(LakePaths(str(submit_stub.lake)).evaluations.partition(RUN_DATE), facts)
    assert nightly.main(submit_stub.arguments("--retrain")) == 0
    calls = submit_stub.calls()
    applied = [call["job"] for call in calls if "workflow.mode=apply" in call["words"]]
    assert applied == (["build_features"] if again else [])
    assert [call["job"] for call in calls][3] == ("build_features" if again else "build_candidates")
    assert (submit_stub.lake / f"logs/dt={RUN_DATE}/build_features_again.log").exists() == again


def test_a_retraining_with_mode_fit_applies_the_workflow_of_a_champion_that_was_kept(
    submit_stub: SparkSubmitStub,
) -> None:
    champion, challenger = ({"workflow_version": version} for version in "ab")
    facts = {"promoted": False, "champion": champion, "challenger": challenger}
    publish_facts(LakePaths(str(submit_stub.lake)).evaluations.partition(RUN_DATE), facts)
    assert nightly.main(submit_stub.arguments("--retrain", "--set", "workflow.mode=fit")) == 0
    calls = [call for call in submit_stub.calls() if call["job"] == "build_features"]
    modes = [[word for word in call["words"] if word.startswith("workflow.mode")][-1] for call in calls]
    assert modes == ["workflow.mode=fit", "workflow.mode=apply"]


@pytest.mark.parametrize("promoted_on, mode", [(RUN_DATE, ["workflow.mode=apply"]), ("2026-01-02", [])])
def test_a_run_without_training_applies_the_workflow_of_a_champion_promoted_that_day(
    submit_stub: SparkSubmitStub, promoted_on: str, mode: list[str]
) -> None:
    path = submit_stub.lake / f"models/generated/promotions/dt={promoted_on}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"promoted": True, "champion_after": "m1"}))
    assert nightly.main(submit_stub.arguments()) == 0
    asked = [
        [word for word in call["words"] if word.startswith("workflow.mode")] for call in submit_stub.calls()
    ]
    assert asked == [mode, [], [], []]


def test_lists_are_delivered_right_behind_scoring_where_there_are_sinks(submit_stub: SparkSubmitStub) -> None:
    sink = "deliver.sinks=[{kind: json_lines, name: files, path: /out}]"
    assert nightly.main(submit_stub.arguments("--set", sink)) == 0
    jobs = ["build_features", "build_candidates", "score_daily", "deliver_recommendations", "report"]
    assert [call["job"] for call in submit_stub.calls()] == jobs
    assert submit_stub.calls()[3]["words"][-1] == sink


def test_lists_of_the_day_before_are_measured_when_there_are_any(submit_stub: SparkSubmitStub) -> None:
    publish_facts(LakePaths(str(submit_stub.lake)).recommendations.partition("2026-01-07"), {})
    assert nightly.main(submit_stub.arguments()) == 0
    calls = submit_stub.calls()
    assert [call["job"] for call in calls][-2:] == ["measure_recommendations", "report"]
    assert calls[-2]["words"][calls[-2]["words"].index("--run-date") + 1] == "2026-01-07"
    assert (submit_stub.lake / f"logs/dt={RUN_DATE}/measure_recommendations.log").exists()


def test_lists_measured_on_the_test_split_belong_to_the_same_run(submit_stub: SparkSubmitStub) -> None:
    assert nightly.main(submit_stub.arguments("--set", "measure.against=test_split")) == 0
    words = submit_stub.calls()[-2]["words"]
    assert words[words.index("--run-date") + 1] == RUN_DATE


@pytest.mark.parametrize("code", [1, 2, 3, 4, 134, 137])
def test_first_failure_stops_the_run_with_its_exit_code_after_a_report(
    submit_stub: SparkSubmitStub, capsys: Any, code: int
) -> None:
    submit_stub.plan({"train_model": {"exit": code}})
    assert nightly.main(submit_stub.arguments("--retrain")) == code
    assert [call["job"] for call in submit_stub.calls()] == ["build_features", "train_model", "report"]
    assert f"train_model ended with exit code {code}" in capsys.readouterr().err


def test_a_report_that_fails_too_keeps_the_exit_code_of_the_run(
    submit_stub: SparkSubmitStub, capsys: Any
) -> None:
    submit_stub.plan({"build_features": {"exit": 3}, "report": {"exit": 4}})
    assert nightly.main(submit_stub.arguments()) == 3
    assert [call["job"] for call in submit_stub.calls()] == ["build_features", "report"]
    submit_stub.plan({"report": {"exit": 4}})
    assert nightly.main(submit_stub.arguments()) == 4
    assert [call["job"] for call in submit_stub.calls()][2:].count("report") == 1


def test_every_run_has_a_record_with_the_codes_of_its_stages(submit_stub: SparkSubmitStub) -> None:
    assert nightly.main(submit_stub.arguments()) == 0
    metrics = submit_stub.lake / "nightrank_generated_build_candidates.prom"
    metrics.write_text("nightrank_run_success 1.0\n")  # of the run before
    submit_stub.plan({"build_candidates": {"signal": int(signal.SIGKILL)}})
    words = submit_stub.arguments("--set", f"watch.textfile_folder={submit_stub.lake}")
    began = file_io.utc_now()
    assert nightly.main(words) == 137
    records = read_records(LakePaths(str(submit_stub.lake)), [RUN_DATE])
    (stage,) = [
        record for record in records if record.job == "build_candidates"
    ]  # it could not write its own
    assert (stage.exit_code, stage.config, stage.run_date) == (137, "generated", RUN_DATE)
    assert began <= stage.started_at <= stage.ended_at
    assert stage.error is not None
    assert "build_candidates ended with exit code 137 (killed by SIGKILL" in stage.error["problem"]
    assert stage.error["remedy"].endswith("build_candidates.log")
    assert metrics.read_text() == run_text(stage)
    records.remove(stage)
    good, bad = sorted(records, key=lambda record: record.exit_code)  # both ended within a second
    assert (good.job, good.exit_code, good.error) == ("nightly", 0, None)
    assert set(good.phases) == {"build_features", "build_candidates", "score_daily", "report"}
    assert bad.exit_code == 137
    assert bad.facts["exit_codes"] == {"build_features": 0, "build_candidates": 137, "report": 0}
    assert bad.error is not None
    assert "build_candidates ended with exit code 137" in bad.error["problem"]


def test_stage_killed_outright_counts_as_137(submit_stub: SparkSubmitStub, capsys: Any) -> None:
    submit_stub.plan({"build_features": {"signal": int(signal.SIGKILL)}})
    assert nightly.main(submit_stub.arguments()) == 137
    assert "killed by SIGKILL: worth a retry" in capsys.readouterr().err


def test_failure_shows_the_typed_error_and_where_the_log_is(
    submit_stub: SparkSubmitStub, capsys: Any
) -> None:
    log_text = (
        "12:00:00 nightrank: build_features failed: raw/dt=x is empty\n"
        "  what to do: give it rows\nat java.lang.Thread"
    )
    submit_stub.plan({"build_features": {"exit": 3, "said": log_text}})
    assert nightly.main(submit_stub.arguments()) == 3
    error = capsys.readouterr().err
    assert "raw/dt=x is empty" in error
    assert "what to do: give it rows" in error
    assert "java.lang.Thread" not in error
    assert str(submit_stub.lake / f"logs/dt={RUN_DATE}/build_features.log") in error


def test_logs_of_a_lake_on_a_store_are_copied_to_it_when_a_stage_ends(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Helm chart runs `nightly` with such lakes. The folder of its pod is lost when the pod ends."""
    stub = SparkSubmitStub(tmp_path, isolate=True)
    monkeypatch.setattr(launchers, "spark_submit", lambda: stub.program)
    stub.plan({"build_features": {"said": "one\ntwo"}, "score_daily": {"exit": 3, "said": "no users"}})
    with servers.bucket(tmp_path, "nightly"):
        lake = "s3a://nightly/shop/lake"
        arguments = [*stub.arguments(), "--set", f"lake={lake}"]
        assert nightly.main(arguments) == 3
        logs = f"{lake}/logs/dt={RUN_DATE}"
        assert f"what to do: read {logs}/score_daily.log" in capsys.readouterr().err
        assert file_io.read_text(f"{logs}/score_daily.log") == "no users\n"
        assert file_io.read_text(f"{logs}/build_features.log").startswith("one\ntwo\n")
        assert "nightly" in {record.job for record in read_records(LakePaths(lake), [RUN_DATE])}
        monkeypatch.setattr(file_io, "replace_text", refuse_logs)
        assert nightly.main(arguments) == 3
        printed = capsys.readouterr().err
        assert "one\ntwo\n" in printed
        assert f"This log cannot be copied to {logs}/build_features.log: the store is full" in printed


def refuse_logs(
    path: str, text: str, replace_text: Callable[[str, str], None] = file_io.replace_text
) -> None:
    if path.endswith(".log"):
        raise InfrastructureError("the store is full", "wait")
    replace_text(path, text)


def test_stray_spark_home_is_dropped(submit_stub: SparkSubmitStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/somewhere/else")
    assert nightly.main(submit_stub.arguments()) == 0
    assert {call["spark_home"] for call in submit_stub.calls()} == {None}


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["--set", "no_such_key=1"], "no_such_key"),
        (["--profile", "missing.conf"], "missing.conf"),
        (["--run-date", "2026-1-8"], "2026-1-8"),
    ],
)
def test_bad_arguments_end_in_2_before_anything_runs(
    submit_stub: SparkSubmitStub, capsys: Any, arguments: list[str], named: str
) -> None:
    assert nightly.main(submit_stub.arguments(*arguments)) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "what to do:" in error
    assert not (submit_stub.folder / "calls.jsonl").exists()


def test_a_run_date_later_than_tomorrow_needs_future_which_every_stage_gets(
    submit_stub: SparkSubmitStub, capsys: Any
) -> None:
    words = [FAR if word == RUN_DATE else word for word in submit_stub.arguments()]
    assert nightly.main(words) == EXIT_CONFIG
    assert f"--run-date {FAR!r} is later than tomorrow" in capsys.readouterr().err
    assert not submit_stub.lake.exists()
    assert nightly.main([*words, "--future"]) == 0
    calls = submit_stub.calls()
    assert {call["job"] for call in calls} >= {"build_features", "score_daily", "report"}
    assert all("--future" in call["words"] and FAR in call["words"] for call in calls)


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "lake").touch()  # a file
    stage = launchers.Stage("build_features", RUN_DATE, tmp_path / "lake/logs/build_features.log")
    with pytest.raises(InfrastructureError, match="cannot write the log of build_features"):
        stage.open_log()


def test_a_log_on_a_full_disk_is_an_infrastructure_error() -> None:
    stage = launchers.Stage("build_features", RUN_DATE, Path("/dev/full"))
    with (
        pytest.raises(InfrastructureError, match=r"cannot write the log of full: .*No space left"),
        stage.open_log() as log,  # closing the log must not raise a second error
    ):
        launchers._append(log, b"a line\n")


def test_an_error_of_the_disk_ends_nightly_without_a_traceback(
    submit_stub: SparkSubmitStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_chain, "run_night", fail)
    assert nightly.main(submit_stub.arguments()) == 4
    assert "nightly failed: [Errno 28] No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_ends_the_whole_group_of_the_running_stage(
    submit_stub: SparkSubmitStub, number: signal.Signals, code: int
) -> None:
    submit_stub.plan({"build_features": {"hang": True}})
    program = "import sys; from pathlib import Path; from jobs import nightly; "
    program += "from jobs.chain import launchers; "
    program += f"launchers._PROGRAM = ({str(submit_stub.application)!r},); "
    program += (
        f"launchers.spark_submit = lambda: Path({str(submit_stub.program)!r}); launchers._GRACE_S = 0.5; "
    )
    metrics = submit_stub.folder / "nightrank_generated_build_features.prom"
    words = submit_stub.arguments("--set", f"watch.textfile_folder={submit_stub.folder}")
    program += f"sys.exit(nightly.main({words!r}))"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        _wait_for(lambda: (submit_stub.folder / "pids").exists(), 60)
        pids = [int(pid) for pid in (submit_stub.folder / "pids").read_text().split()]
        process.send_signal(number)
        _, error = process.communicate(timeout=20)
    assert process.returncode == code
    assert f"{number.name} arrived; build_features was stopped" in error
    records = {one.job: one for one in read_records(LakePaths(str(submit_stub.lake)), [RUN_DATE])}
    assert {job: one.exit_code for job, one in records.items()} == {"build_features": code, "nightly": code}
    stopped = records["build_features"]
    assert stopped.error is not None
    assert stopped.error["problem"] == f"{number.name} arrived; build_features was stopped"
    assert metrics.read_text() == run_text(stopped)
    _wait_for(lambda: not any(_alive(pid) for pid in pids))


def test_a_second_run_of_a_date_waits_until_the_first_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The leases of the jobs would let the stages of the two runs alternate."""
    config = load_config("conf/datasets/generated.yaml", [f"lake={tmp_path}"])
    plan = RunPlan(config, RUN_DATE, retrain=False)

    def lease_of(
        run_date: str, wait_s: float, signal_number: int | None = None
    ) -> AbstractContextManager[None]:
        submission = launchers.Submission("local.conf", "x.yaml", wait_s=wait_s)
        interruptions = launchers.Interruptions()
        interruptions.received = signal_number
        launcher = launchers.SparkSubmits(submission)
        runner = run_chain.StageRunner(launcher, interruptions, StageProgress())
        return run_chain._run_lease(replace(plan, run_date=run_date), runner)

    first = lease_of(RUN_DATE, 0)
    with first, lease_of("2026-01-05", 0):  # another date does not wait
        with pytest.raises(
            InfrastructureError, match=rf"nightly of generated for {RUN_DATE} is being done by"
        ):
            lease_of(RUN_DATE, 0).__enter__()
        assert "Waiting" not in capsys.readouterr().out
        with pytest.raises(launchers.StoppedError, match="SIGTERM arrived; nightly was stopped"):
            lease_of(RUN_DATE, 60, int(signal.SIGTERM)).__enter__()
        assert f"Waiting for another run of {RUN_DATE}" in capsys.readouterr().out
        with lease(LakePaths(str(tmp_path)), RUN_DATE, "build_features", "generated"):
            pass  # the stages of the run have leases of their own
    with lease_of(RUN_DATE, 0):
        pass


def test_stages_share_an_application_until_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = SparkSubmitStub(tmp_path, isolate=False)
    monkeypatch.setattr(launchers, "_PROGRAM", (str(stub.application),))
    stub.plan({"build_candidates": {"exit": 3}})
    assert nightly.main(stub.arguments()) == 3
    pids = {call["job"]: call["pid"] for call in stub.calls()}
    assert pids["build_features"] == pids["build_candidates"] != pids["report"]
    _wait_for(lambda: not any(_alive(pid) for pid in pids.values()))


def test_an_application_that_ends_between_stages_is_started_again(tmp_path: Path) -> None:
    """For example, the system may end it while the gate's decision is being read."""
    stub = SparkSubmitStub(tmp_path, isolate=False)
    launcher = launchers.Application(launchers.Submission("conf/spark/local.conf", "any.yaml"))
    log = tmp_path / "x.log"
    with (
        pytest.MonkeyPatch.context() as patch,
        closing(launcher),
        launchers.Interruptions() as interruptions,
    ):
        patch.setattr(launchers, "_PROGRAM", (str(stub.application),))
        stage = launchers.Stage("report", RUN_DATE, log)
        first = launcher.run(stage, interruptions, lambda _: None)
        os.kill(stub.calls()[0]["pid"], signal.SIGKILL)
        _wait_for(lambda: not _alive(stub.calls()[0]["pid"]))
        second = launcher.run(stage, interruptions, lambda _: None)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.summary == second.summary
    assert first.summary is not None


@pytest.mark.parametrize("retrain", [False, True])
def test_the_application_starts_before_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retrain: bool
) -> None:
    """While nightly checks the configuration, the JVM starts, and a training's imports begin."""
    stub = SparkSubmitStub(tmp_path, isolate=False)
    monkeypatch.setattr(launchers, "_PROGRAM", (str(stub.application),))

    def check_tables(*_: object) -> None:
        _wait_for(lambda: len(stub.starts()) == 1)

    monkeypatch.setattr(run_chain, "check_tables", check_tables)
    assert nightly.main(stub.arguments(*(["--retrain"] if retrain else []))) == 0
    [started] = stub.starts()
    assert started["modules"] == (["torch"] if retrain else [])
    assert {call["pid"] for call in stub.calls()} == {started["pid"]}


def test_a_check_that_fails_ends_the_application_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = SparkSubmitStub(tmp_path, isolate=False)
    monkeypatch.setattr(launchers, "_PROGRAM", (str(stub.application),))

    def check_tables(*_: object) -> None:
        _wait_for(lambda: len(stub.starts()) == 1)
        raise ConfigError("this is wrong", "correct it")

    monkeypatch.setattr(run_chain, "check_tables", check_tables)
    assert nightly.main(stub.arguments()) == EXIT_CONFIG
    assert "this is wrong" in capsys.readouterr().err
    [started] = stub.starts()
    _wait_for(lambda: not _alive(started["pid"]))
    assert not (stub.folder / "calls.jsonl").exists()


@pytest.mark.parametrize(
    "master, isolated", [("local[4]", False), ("local", False), ("yarn", True), ("", True)]
)
def test_stages_have_processes_of_their_own_where_spark_runs_on_other_machines(
    tmp_path: Path, master: str, isolated: bool
) -> None:
    profile = tmp_path / "profile.conf"
    profile.write_text(f"spark.master {master}\n" if master else "spark.executor.cores 2\n")
    submission = launchers.Submission(str(profile), "any.yaml")
    launcher = launchers.launcher_of(submission, isolate=False)
    assert isinstance(launcher, launchers.SparkSubmits) == isolated
    assert isinstance(launchers.launcher_of(submission, isolate=True), launchers.SparkSubmits)


def test_a_job_can_have_a_profile_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = SparkSubmitStub(tmp_path, isolate=True)
    monkeypatch.setattr(launchers, "spark_submit", lambda: stub.program)
    profile = tmp_path / "of candidates.conf"
    profile.write_text("spark.master local[2]\nspark.executor.cores 2\n")
    assert nightly.main(stub.arguments("--job-profile", f"build_candidates={profile}")) == 0
    profiles = {call["job"]: call["words"][1] for call in stub.calls()}
    assert profiles.pop("build_candidates") == str(profile)
    assert set(profiles.values()) == {"conf/spark/local.conf"}


@pytest.mark.parametrize("option", ["--profile", "--job-profile"])
def test_a_profile_that_does_not_say_where_spark_runs_is_refused_before_a_stage_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    stub = SparkSubmitStub(tmp_path, isolate=True)
    monkeypatch.setattr(launchers, "spark_submit", lambda: stub.program)
    monkeypatch.delenv("MASTER", raising=False)
    profile = tmp_path / "etl.conf"
    profile.write_text("spark.executor.cores 2\n")
    words = (option, str(profile) if option == "--profile" else f"score_daily={profile}")
    assert nightly.main(stub.arguments(*words)) == EXIT_CONFIG
    error = capsys.readouterr().err
    assert f"the Spark profile {profile} has no spark.master" in error
    assert "spark.master spark://head:7077" in error
    assert not (stub.folder / "calls.jsonl").exists()
    monkeypatch.setenv("MASTER", "spark://head:7077")  # spark-submit reads it
    assert nightly.main(stub.arguments(*words)) == 0


def test_a_profile_of_a_job_that_cannot_be_used_is_refused_before_a_stage_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = SparkSubmitStub(tmp_path, isolate=False)
    monkeypatch.setattr(launchers, "_PROGRAM", (str(stub.application),))
    one = ("--job-profile", "train_model=conf/spark/train-cpu.conf")
    assert nightly.main(stub.arguments(*one)) == EXIT_CONFIG  # all stages share one application
    assert "--job-profile train_model=conf/spark/train-cpu.conf has no effect" in capsys.readouterr().err
    absent = ("--isolate", "--job-profile", "train_model=absent.conf")
    assert nightly.main(stub.arguments(*absent)) == EXIT_CONFIG
    assert "the Spark profile absent.conf does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        nightly.main(stub.arguments("--job-profile", "nightly=conf/spark/train-cpu.conf"))
    assert ended.value.code == EXIT_CONFIG
    assert "nightly=conf/spark/train-cpu.conf is not JOB=CONF" in capsys.readouterr().err
    assert not stub.starts()


def test_the_jobs_that_can_have_a_profile_are_those_of_a_run() -> None:
    names = set(re.findall(r'"(\w+)"', (launchers.JOBS / "chain/steps.py").read_text()))
    names.remove("champion")  # a key of the gate's facts
    assert set(launchers.STAGE_JOBS) == {name for name in names if (launchers.JOBS / f"{name}.py").is_file()}


def test_output_that_fills_the_pipe_reaches_the_log_of_its_stage(submit_stub: SparkSubmitStub) -> None:
    said = "\n".join(f"line {number}" for number in range(50_000))
    submit_stub.plan({"build_candidates": {"said": said}})
    assert nightly.main(submit_stub.arguments()) == 0
    logs = submit_stub.lake / f"logs/dt={RUN_DATE}"
    assert said in (logs / "build_candidates.log").read_text()
    assert "line 7" not in (logs / "score_daily.log").read_text()


def test_group_of_a_failed_stage_is_ended_too(submit_stub: SparkSubmitStub) -> None:
    """A JVM that is killed leaves its Python driver behind, which would go on writing."""
    script = submit_stub.program if submit_stub.isolate else submit_stub.application
    script.write_text(
        f"#!/bin/sh\nsh -c 'trap \"\" TERM; sleep 600' & echo $! > {submit_stub.folder}/pids\nexit 1\n"
    )
    assert nightly.main(submit_stub.arguments()) == 1
    pid = int((submit_stub.folder / "pids").read_text())
    _wait_for(lambda: not _alive(pid))


def test_the_last_job_summary_of_a_log_is_parsed(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    lines = [
        '{"job": "x", "seconds": {}, "n": 1}',
        '{"job": "x", "seconds": {}, "n": 2}',
        '{"n": 3}',
        "{broken",
        "noise",
    ]
    log.write_text("\n".join(lines))
    summary = JobSummary.in_log(log)
    assert summary is not None
    assert summary.values() == {"job": "x", "seconds": {}, "n": 2}
    log.write_text("noise\n")
    assert JobSummary.in_log(log) is None


def test_error_excerpt_of_a_long_failure_are_its_first_line_its_cause_and_its_remedy(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    frames = "\n".join(f"  File {index}" for index in range(20))
    log.write_text(
        f"start\n12:00:00 nightrank: x failed in Spark or the system around it\nTraceback:\n{frames}\n"
        "OSError: disk is full\n12:00:00 nightrank: what to do: read the cause above\nlater noise\n"
    )
    assert launchers.error_excerpt(log) == [
        "12:00:00 nightrank: x failed in Spark or the system around it",
        "OSError: disk is full",
        "12:00:00 nightrank: what to do: read the cause above",
    ]
    log.write_text("one\ntwo\n\nthree\n")
    assert launchers.error_excerpt(log) == ["one", "two", "three"]
    frames = "\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)\n" * 6
    cause = "Caused by: java.io.IOException: error=2, No such file or directory"
    log.write_text(f'Exception in thread "main" a.IOException: x\n{frames}{cause}\n{frames}\t... 9 more\n')
    assert launchers.error_excerpt(log) == ['Exception in thread "main" a.IOException: x', cause]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _wait_for(happened: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
