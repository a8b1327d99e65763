"""The benchmark of a retraining run: its frozen configuration, its comparison of results, and its targets."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import run
from benchmarks.agreement import Disagreement
from benchmarks.harness import Measured
from benchmarks.run import KINDS, TARGETS, facts, parse, ratios_of, verdicts
from benchmarks.run_agreement import hit_rate, require_same_work
from benchmarks.run_contenders import CONFIG, FRESH_DATE, ROOT, Nightly, PlainScript, Run, RunFailed
from benchmarks.run_output import Scale, parts_of, print_scale
from conf.load import load_config

LISTS = pa.table({"user_id": ["a", "a", "b", "b", "c", "c"], "item_id": ["1", "2", "1", "3", "2", "3"]})
CLICKS = pa.table({"user_id": ["a", "a", "b", "d"], "item_id": ["1", "3", "2", "1"]})


def a_run(
    wall_s: float = 2.0,
    cpu_s: float = 3.0,
    kept: int = 90,
    dropped: int = 10,
    auc: float = 0.79,
    baseline_auc: float = 0.69,
    lists: pa.Table = LISTS,
) -> Run:
    measured = Measured(0, False, wall_s, cpu_s, 2**30, 2**30, ((0.0, 0.0), (wall_s, cpu_s)))
    return Run(measured, {"read": 0.5, "train": 1.0}, kept, dropped, auc, baseline_auc, lists)


def test_the_configuration_describes_the_frozen_work() -> None:
    """Newer defaults must not change what the benchmark measures."""
    config = load_config(str(ROOT / CONFIG), [])
    assert config.model.model_dump(exclude_defaults=True) == {
        "architecture": "dlrm",
        "embedding_dim": 16,
        "bottom_mlp": [64, 16],
        "top_mlp": [64, 32],
    }
    assert [source.source for source in config.candidates.sources] == ["all_items"]
    assert (config.candidates.exclude_clicked, config.candidates.filters) == ([], [])
    assert (config.history, config.negatives, config.gate.lists_users) == (None, None, None)
    train = config.train
    assert (train.epochs, train.global_batch_size, train.num_ranks, train.seed) == (1, 2048, "auto", 0)
    assert (train.learning_rate, train.embedding_learning_rate) == (3e-3, 0.15)
    assert (train.warmup_share, train.decay_start_share, train.decay_power) == (0.05, 0.6, 2.0)
    assert (train.precision, train.loss, train.baselines) == ("fp32", "bce", ["logistic_regression"])
    assert (train.refit, train.negatives, train.unknown_share, train.l2) == (False, None, {}, 0.0)
    assert train.embeddings.optimizer == "row_wise_adagrad"
    assert (config.score.k, config.score.precision, config.score.blend) == (10, "fp32", "none")
    assert config.generate is not None
    assert (config.generate.rows_per_day, config.generate.users, config.generate.items) == (
        60_000,
        4_000,
        800,
    )


def test_hit_rate_counts_users_with_a_list_and_clicks() -> None:
    assert hit_rate(LISTS, CLICKS) == 0.5  # a has a hit, b has none; c has no clicks, d has no list


def test_runs_with_the_same_results_are_comparable() -> None:
    figures = require_same_work(a_run(auc=0.794), a_run(auc=0.790), CLICKS)
    assert figures["auc_nightly"] == 0.794
    assert figures["hit_rate_nightly"] == figures["hit_rate_script"] == 0.5


@pytest.mark.parametrize(
    "other, message",
    [
        (a_run(kept=91), "rows kept"),
        (a_run(dropped=9), "rows dropped"),
        (a_run(auc=0.796), "auc"),
        (a_run(auc=float("nan")), "auc"),
        (a_run(baseline_auc=0.70), "baseline_auc"),
        (a_run(lists=LISTS.slice(2)), "entries of lists"),
        (a_run(lists=pa.table({"user_id": ["a"] * 6, "item_id": list("123456")})), "users with a list"),
        (a_run(lists=pa.table({"user_id": LISTS["user_id"], "item_id": ["7"] * 6})), "hit_rate"),
    ],
)
def test_runs_with_other_results_are_refused(other: Run, message: str) -> None:
    with pytest.raises(Disagreement, match=message):
        require_same_work(a_run(), other, CLICKS)


def test_ratios_and_facts_are_of_medians(capsys: pytest.CaptureFixture[str]) -> None:
    mine = [a_run(wall_s=seconds, cpu_s=2 * seconds) for seconds in (4.0, 10.0, 5.0)]
    theirs = [a_run(wall_s=seconds, cpu_s=seconds) for seconds in (2.5, 2.0, 9.0)]
    runs = {kind: {Nightly.name: mine, PlainScript.name: theirs} for kind in KINDS}
    assert ratios_of(10, runs)["10x_warm_wall"] == 0.5
    assert ratios_of(10, runs)["10x_fresh_cpu"] == 0.25
    assert facts(runs)[Nightly.name]["warm"]["seconds"] == 5.0
    assert parts_of(mine) == {"read": 0.5, "train": 1.0, "start-up and end": 3.5}
    print_scale(10, Scale(runs, []))
    output = capsys.readouterr().out
    assert "2.00" in output
    assert "start-up and end" in output


def test_a_missed_target_is_printed_as_missed() -> None:
    (line,) = verdicts({"1x_warm_wall": 1 / 2.5})
    assert "2.50 times" in line
    assert "milestone at most 3: met" in line
    assert "target at most 2: MISSED" in line
    (line,) = verdicts({"100x_warm_wall": None})
    assert line.startswith("100x_warm_wall: no ratio")


class Measurable:
    """A contender with prepared results. The script fails in its second run if `fails` is set."""

    fails = False

    def __init__(self, *_: object) -> None:
        self.ended = 0

    def start(self) -> None:
        self.runs = 0

    def run(self, run_date: str, warm: bool) -> Run:
        self.runs += 1
        if self.fails and self.runs == 2:
            raise RunFailed("killed")
        return a_run()

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_script_that_fails_at_a_large_scale_is_reported(
    fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = type("Ours", (Measurable,), {"name": Nightly.name})
    script = type("Script", (Measurable,), {"name": PlainScript.name, "fails": fails})
    monkeypatch.setattr(run, "CACHE", tmp_path)
    monkeypatch.setattr(run, "make_log", lambda _: tmp_path)
    monkeypatch.setattr(run, "clicks_of", lambda *_: CLICKS)
    monkeypatch.setattr(run, "Nightly", ours)
    monkeypatch.setattr(run, "PlainScript", script)
    measured = run.measure_scale(100, 2, 2, warm_up=True)
    assert [len(of_kind[Nightly.name]) for of_kind in measured.runs.values()] == [2, 2]
    assert measured.failed == ("killed" if fails else None)
    assert (ratios_of(100, measured.runs)["100x_warm_wall"] is None) == fails
    assert len(measured.agreement) == (0 if fails else 6)
    assert set(facts(measured.runs)) == {Nightly.name} | (set() if fails else {PlainScript.name})
    print_scale(100, measured)
    assert ("plain_run does not finish at the scale 100: killed" in capsys.readouterr().out) == fails
    if fails:
        with pytest.raises(RunFailed):  # the smallest scale must run
            run.measure_scale(1, 1, 2, warm_up=False)


def test_every_target_is_a_ratio_of_the_benchmark() -> None:
    runs = {kind: {Nightly.name: [a_run()], PlainScript.name: [a_run()]} for kind in KINDS}
    names = {name for scale in (1, 10, 100) for name in ratios_of(scale, runs)}
    assert set(TARGETS) <= names


def test_a_number_of_pairs_below_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--pairs", "0"])
    assert "--pairs 0 is less than 1" in capsys.readouterr().err


def test_a_new_lake_has_only_the_log(tmp_path: Path) -> None:
    day = tmp_path / "log/raw/dt=2026-01-02"
    day.mkdir(parents=True)
    (day / "a.tsv").write_text("1\n")
    folder = tmp_path / "work"
    (folder / "lake/models").mkdir(parents=True)
    Nightly(tmp_path / "log", folder, 1, 1).start()
    assert [path.name for path in (folder / "lake").iterdir()] == ["raw"]
    assert (folder / "lake/raw/dt=2026-01-02/a.tsv").read_text() == "1\n"


def test_a_scale_without_disk_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CACHE", tmp_path)
    monkeypatch.setattr(run, "DISK_BYTES_PER_SCALE", 1)
    assert run.missing_disk(1) is None
    monkeypatch.setattr(run, "DISK_BYTES_PER_SCALE", 2**60)
    assert "GiB of free disk are needed" in str(run.missing_disk(1))


@pytest.mark.processes
def test_the_error_of_a_contender_is_shown(tmp_path: Path) -> None:
    script = PlainScript(tmp_path / "log", tmp_path / "work", 1, 1)
    script.start()
    with pytest.raises(RunFailed, match=r"exit code 1:[^$]*dt=2026-01-02 has no file"):
        script.run(FRESH_DATE, warm=False)
