"""`jobs/prune.py` deletes only dates and versions that no run of the run date or a later one needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, InfrastructureError
from jobs import prune
from storage import file_io, other_tools
from storage.dataset import publish_dataset, read_dataset, split_files
from storage.manifest import is_published, is_whole, read_manifest
from storage.other_tools import LOCK_NAME
from storage.paths import LakePaths, Partition
from storage.remove import dates_of_tables, list_lake
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.erasure import erased_lake
from tests.etl.lakes import servers
from tests.etl.text.test_two_passes import GROUPS
from tests.jobs import prune_lake
from tests.jobs.prune_lake import DAYS, NAME, RUN_DATE, WINDOW, config_of, day, entries_of, files_of, version
from training.registry.refits import serving_model
from training.registry.versions import retriever_as_of

FIRST = day(9)  # the first date that is kept with KEEP
KEEP = 4


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prune") / "lake"
    prune_lake.build(root)
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    return prune_lake.copy(built, tmp_path / "lake")


def run(root: Path | str, keep_days: int = KEEP, *, dry_run: bool = False, **sections: Any) -> dict[str, Any]:
    """Runs the stage and returns the facts of its summary. Without `output`, there is no grace period.

    The files of the lake are older than the default of a day.
    """
    sections = {"output": {"grace_hours": 0.0}, **sections}
    context = RunContext("prune", config_of(Path(root), **sections), RUN_DATE)
    _, summary = prune.run(context, keep_days, dry_run=dry_run)
    return dict(summary.facts)


def published(root: Path) -> dict[str, list[str]]:
    """The published dates of each table."""
    dates: dict[str, list[str]] = {}
    for (table, dt), of_date in sorted(dates_of_tables(list_lake(LakePaths(str(root)))).items()):
        if of_date.manifest is not None:
            dates.setdefault(table, []).append(dt)
    return dates


def models(root: Path, name: str) -> str:
    """The first character of each version of a model."""
    return "".join(sorted(path.parent.name[0] for path in (root / "models" / name).glob("*/model.json")))


def test_each_table_keeps_the_dates_from_the_first_one_on(root: Path) -> None:
    before = published(root)
    run(root)
    after = published(root)
    a, b, c, d = (version(letter) for letter in "abcd")
    assert not [table for table in after if a in table or b in table]  # unused workflow versions
    by_name = (f"last_values/{NAME}", f"profiles/{NAME}")
    for table in ("quarantine", "value_counts", "typed", "last_clicks", *by_name):
        assert after[table] == DAYS[8:], table
    for table in ("recommendations", "scores", f"quality/{NAME}", "list_changes", "measures", "deliveries"):
        assert after[table] == DAYS[8:], table
    # The newest date of a table of a used version stays, and the newest one before the run date.
    for kind in ("users", "items", "candidates", "candidate_items", "gate_items"):
        assert after[f"{kind}/{d}"] == DAYS[8:]
        assert after[f"{kind}/{c}"] == [day(7)]
    # The datasets of 09 and later refer to days from 07 on.
    assert after[f"features/{d}"] == DAYS[6:]
    assert after[f"features/{c}"] == [day(7)]
    for table in ("datasets", "experiments/test"):
        assert after[table] == before[table]


def test_models_that_serve_or_may_serve_again_stay(root: Path) -> None:
    run(root)
    # 4 serves and 5 was trained for a kept date; 3 is the parent of 4, and a rollback would return to it.
    assert models(root, NAME) == "345"
    assert models(root, f"{NAME}-refit") == "7"
    assert models(root, f"{NAME}-retriever") == "0"
    assert models(root, f"{NAME}-experiments") == "f"
    assert sorted(path.name[0] for path in (root / "workflow").iterdir()) == ["c", "d", "e"]
    lake, config = LakePaths(str(root)), config_of(root)
    assert serving_model(config, lake, RUN_DATE) == serving_model(config, lake, day(9))
    assert retriever_as_of(lake, config, RUN_DATE, version("d")) == version("0")


def test_files_that_are_no_old_dates_or_unused_versions_stay(root: Path) -> None:
    def others() -> set[str]:
        parts = ("raw", "erasures", "delivered", "mlflow.db", "datasets", "experiments", "spark-events")
        registry = ("blends", "experiment_stops", "interventions", "promotions", "refits", "runs")
        return {
            path
            for path in entries_of(root)
            if path.split("/")[0] in parts
            or path.startswith(tuple(f"models/{NAME}/{one}" for one in registry))
        }

    prune_lake.pin(LakePaths(str(root)), day(4), "1", "release")
    before = others()
    assert len(before) > 50
    run(root)
    assert others() == before
    assert (root / f"checkpoints/{version('b')}").exists()  # no model yet: a training continues from it
    assert not (root / f"checkpoints/{version('4')}").exists()


def _pinned_on_a_kept_date(lake: LakePaths) -> None:
    prune_lake.pin(lake, day(10), "1")
    prune_lake.pin(lake, day(11), "5")
    prune_lake.pin(lake, day(12), "4")


def _champion_before_this_one(lake: LakePaths) -> None:
    prune_lake.pin(lake, day(7), "1")
    prune_lake.pin(lake, day(8), "4")


def _kept_date(lake: LakePaths) -> None:
    prune_lake.publish(lake.features(version("b")).partition(day(10)))


def _pinned_before(lake: LakePaths) -> None:
    prune_lake.pin(lake, day(4), "1")


def _pinned_later(lake: LakePaths) -> None:
    prune_lake.pin(lake, "2026-01-20", "2")


def _child(lake: LakePaths) -> None:
    prune_lake.add_model(lake, NAME, "e", day(12), "d", parent=version("2"))


def _extended_by_a_kept_dataset(lake: LakePaths) -> None:
    dataset = read_dataset(lake, RUN_DATE)
    publish_dataset(lake, replace(dataset, parent_workflow=version("b")), file_io.utc_now())


def _nothing(lake: LakePaths) -> None:
    pass


def test_the_command_deletes_only_with_its_option(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", "my.yaml", "--run-date", RUN_DATE, "--keep-days", str(KEEP)]
    before = entries_of(root)
    for more, is_changed in ((), False), (("--delete",), True):
        context = RunContext("prune", config_of(root), RUN_DATE)
        summary = prune.prune(context, prune._parser().parse_args([*words, *more]))
        assert summary.facts["dry_run"] is not is_changed
        assert (entries_of(root) != before) == is_changed
        assert ("was deleted" in capsys.readouterr().out) == is_changed


@pytest.mark.parametrize(
    "change, sections, kept",
    [
        (_pinned_on_a_kept_date, {}, {"1", "6", "a"}),
        (_champion_before_this_one, {}, {"1", "6", "a"}),
        (_kept_date, {}, {"b"}),
        (_pinned_before, {}, {"1", "6", "a", "8"}),
        (_pinned_later, {}, {"2", "b"}),
        (_child, {}, {"2", "b"}),
        (_extended_by_a_kept_dataset, {}, {"b"}),
        (_nothing, {"train": {"retrain": {"fresh_every_days": 7}}}, {"2", "b"}),
        *(
            (
                _nothing,
                {"serving": {"experiment": {"name": "try", "start": start, "share": 0.5, "model": model}}},
                kept,
            )
            for start, model, kept in (
                (day(10), version("1"), {"1", "6", "a"}),
                (day(10), version("6"), {"1", "6", "a"}),
                ("2026-01-20", version("2"), {"2", "b"}),
                (day(10), "challenger", {"2", "b"}),
            )
        ),
    ],
)
def test_what_keeps_a_version(
    root: Path, change: Callable[[LakePaths], None], sections: dict[str, Any], kept: set[str]
) -> None:
    """Without the change, models 1, 2, 6 and 8 and workflows a and b are deleted."""

    change(LakePaths(str(root)))
    prune_lake.age(root, hours=48)
    config = config_of(root, output={"grace_hours": 0.0}, **sections)
    _, items = prune.plan_prune(config, RUN_DATE, KEEP)
    deleted = {file.path for item in items for file in item.files}
    described = [*root.glob("models/*/*/model.json"), *root.glob("workflow/*/workflow.json")]
    left = {path.parent.name[0] for path in described if str(path.relative_to(root)) not in deleted}
    assert left & set("1268ab") == kept | ({"8"} if "a" in kept else set())


def test_files_of_attempts_go_by_their_date_or_their_age(root: Path) -> None:
    old, new = root / "spark-events/local-1", root / "spark-events/local-2"
    new.write_text("x")
    past = time.time() - 400 * 24 * 3600
    os.utime(old, (past, past))
    (root / "reports/comparison-a-2026-01-03.html").write_text("young")
    run(root, **GRACE)
    assert not old.exists()
    assert new.exists()
    assert sorted(path.name for path in (root / "runs").iterdir()) == [f"dt={one}" for one in DAYS[8:]]
    assert sorted(path.name for path in (root / "logs").iterdir()) == [f"dt={one}" for one in DAYS[8:]]
    expected = ["comparison-a-2026-01-03.html", *(f"{one}.html" for one in DAYS[8:])]
    assert sorted(path.name for path in (root / "reports").iterdir()) == sorted(expected)


def test_a_dry_run_changes_nothing_and_prints_the_same(root: Path) -> None:
    def context() -> RunContext:
        return RunContext("prune", config_of(root, output={"grace_hours": 0.0}), RUN_DATE)

    before = {path: (root / path).stat().st_mtime_ns for path in entries_of(root)}
    would, planned = prune.run(context(), KEEP, dry_run=True)
    assert {path: (root / path).stat().st_mtime_ns for path in entries_of(root)} == before
    was, done = prune.run(context(), KEEP, dry_run=False)
    planned_text, advice = would.rsplit("\n", 1)
    assert planned_text.replace("would be deleted", "was deleted") == was
    assert "add --delete" in advice
    assert {**done.facts, "dry_run": True} == planned.facts
    row = next(line for line in was.splitlines() if line.split()[:1] == ["quarantine"])
    assert row.split()[1:3] == ["8", "24"]  # eight dates, each with a manifest and two files
    deleted = sum(path.count("quarantine") for path in before) - sum(
        p.count("quarantine") for p in entries_of(root)
    )
    assert deleted == 8 * (4 + 5)  # folder, manifest, links; folders of date and attempt, lock, data files
    assert run(root)["deleted"] == {}


@pytest.mark.parametrize("keep_days", [WINDOW, 8, 13])
def test_every_manifest_that_stays_names_files_that_exist(root: Path, keep_days: int) -> None:
    before, lake, config = published(root), LakePaths(str(root)), config_of(root)
    run(root, keep_days)
    after = published(root)
    first = DAYS[max(0, 12 - keep_days)]
    for table, dates in before.items():
        kept = [dt for dt in dates if dt >= first]
        assert set(kept) <= set(after.get(table, [])), table
        for dt in after.get(table, []):
            partition = Partition(table, dt, f"{root}/{table}/dt={dt}", table.count("/") + 2)
            assert is_whole(partition, read_manifest(partition))
    for run_date in prune_lake.RUN_DATES:
        if run_date >= first:
            dataset = read_dataset(lake, run_date)
            assert all(split_files(lake, dataset, split) for split in ("train", "validation", "test"))
            serving = serving_model(config, lake, run_date)
            assert serving is not None
            assert file_io.exists(f"{serving.folder(lake, NAME)}/model.json")
            assert file_io.exists(f"{lake.workflow(dataset.workflow_version)}/workflow.json")
    assert not run(root, keep_days)["deleted"]


class _Killed(BaseException):
    """Ends a prune as SIGKILL does: no handler catches it."""


class _DyingFiles:
    """A file system that dies before a deletion."""

    def __init__(self, files: Any, count: Callable[[], None]) -> None:
        self._files, self._count = files, count

    def __getattr__(self, name: str) -> Any:
        if name in ("delete_file", "delete_dir"):
            self._count()
        return getattr(self._files, name)


def test_a_killed_prune_is_continued(built: Path, tmp_path: Path) -> None:
    expected = prune_lake.copy(built, tmp_path / "expected")
    run(expected)
    before, real = published(expected), (file_io.filesystem, other_tools._remove, os.rmdir)
    complete = {path for path in files_of(expected) if not path.endswith(LOCK_NAME)}
    deaths, number = 0, 1
    while deaths < number:
        root = prune_lake.copy(built, tmp_path / f"killed-{number}")
        calls = 0

        def count(limit: int = number) -> None:
            nonlocal calls
            calls += 1
            if calls == limit:
                raise _Killed

        def counted(function: Callable[[Any], Any], path: Any) -> Any:
            count()
            return function(path)

        def filesystem(path: str) -> tuple[Any, str]:
            files, inner = real[0](path)
            return _DyingFiles(files, count), inner

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_io, "filesystem", filesystem)
            patch.setattr(other_tools, "_remove", lambda path: counted(real[1], path))
            patch.setattr(os, "rmdir", lambda path: counted(real[2], path))
            try:
                run(root)
                break
            except _Killed:
                deaths = number
        for table, dates in before.items():
            for dt in dates:
                partition = Partition(table, dt, f"{root}/{table}/dt={dt}", table.count("/") + 2)
                assert is_published(partition)
                assert is_whole(partition, read_manifest(partition))
        run(root)
        assert {path for path in files_of(root) if not path.endswith(LOCK_NAME)} == complete, number
        prune_lake.age(root, hours=48)
        run(root)  # deletes the lock of an empty date, whose folder is older now
        assert files_of(root) == files_of(expected), number
        number += 251
    assert deaths > 500


def test_files_and_dates_of_the_grace_period_stay(root: Path) -> None:
    lake = LakePaths(str(root))
    backfilled = lake.scores.partition(day(3))
    prune_lake.publish(backfilled)  # a job has published this old date again
    unpublished = root / "_data/scores/dt=2026-01-04/arunning/part-0.parquet"
    unpublished.parent.mkdir()
    unpublished.write_text("x")
    (root / f"models/{NAME}/{version('1')}/dense-00000000.safetensors").write_text("x")
    (root / f"workflow/{version('b')}/new").write_text("x")
    created = [root / f"models/{NAME}/{version('f')}", root / "_data/scores/dt=2026-01-01/arunning"]
    for folder in created:  # a job has just created them
        folder.mkdir(parents=True)
    running = root / f"models/{NAME}/{version('e')}/dense-00000000.safetensors"
    killed = root / f"models/{NAME}/{version('c')}/dense-00000000.safetensors"
    for path in (running, killed):
        path.parent.mkdir()
        path.write_text("x")
    past = time.time() - 48 * 3600
    os.utime(killed, (past, past))
    run(root, **GRACE)
    assert is_whole(backfilled, read_manifest(backfilled))
    for path in (unpublished, running, *created):
        assert path.exists(), path
    assert not killed.exists()
    assert not is_published(lake.scores.partition(day(4)))
    assert models(root, NAME) == "1345"
    assert is_published(lake.features(version("b")).partition(day(5)))
    prune_lake.age(root, hours=48)
    run(root, **GRACE)
    assert not unpublished.exists()
    assert models(root, NAME) == "345"


GRACE: dict[str, Any] = {"output": {"grace_hours": 24.0}}


def _data_of(root: Path, folder: str) -> list[Path]:
    return sorted(path for path in (root / "_data" / folder).rglob("*.parquet"))


def test_a_program_that_has_read_a_manifest_reads_its_files_for_the_grace_period(root: Path) -> None:
    """The files are two days old, but the manifest listed them until now."""
    partition = LakePaths(str(root)).scores.partition(day(4))
    manifest = read_manifest(partition)  # a reader opens the manifest
    unused = LakePaths(str(root)).features(version("a")).partition(day(4))
    of_unused = read_manifest(unused)
    facts = run(root, **GRACE)
    assert not is_published(partition)
    assert not is_published(unused)
    assert is_whole(partition, manifest)
    assert is_whole(unused, of_unused)
    assert not list(Path(partition.path).glob("*.parquet"))  # other tools do not find the rows any more
    assert facts["files_in_grace"] > 100
    assert run(root, **GRACE)["deleted"] == {}
    assert is_whole(partition, manifest)
    prune_lake.age(root, hours=23)
    run(root, **GRACE)
    assert is_whole(partition, manifest)
    prune_lake.age(root, hours=25)
    after = run(root, **GRACE)
    assert (after["files_in_grace"], after["deleted"]["scores"]["count"]) == (0, 6)
    assert not _data_of(root, f"scores/dt={day(4)}")
    assert not _data_of(root, f"features/{version('a')}")


def test_two_prunes_with_a_grace_period_delete_what_one_without_it_deletes(
    built: Path, root: Path, tmp_path: Path
) -> None:
    at_once = prune_lake.copy(built, tmp_path / "at-once")
    run(at_once)
    run(root, **GRACE)
    prune_lake.age(root, hours=48)
    run(root, **GRACE)
    assert files_of(root) == files_of(at_once)


def test_a_date_that_is_published_in_the_grace_period_keeps_the_withdrawn_files(root: Path) -> None:
    """A reader of the deleted manifest may still read them. The first job after the period deletes them."""
    partition = LakePaths(str(root)).scores.partition(day(4))
    manifest = read_manifest(partition)
    run(root, **GRACE)
    prune_lake.publish(partition)
    assert is_whole(partition, manifest)
    again = read_manifest(partition)
    run(root, **GRACE)  # the date was just published, so prune keeps it
    assert is_whole(partition, manifest)
    prune_lake.age(root, hours=48)
    run(root, **GRACE)
    assert not is_published(partition)
    assert is_whole(partition, again)


def test_the_text_says_which_files_stay(root: Path) -> None:
    config = config_of(root, **GRACE)
    text, _ = prune.run(RunContext("prune", config, RUN_DATE), KEEP, dry_run=True)
    assert "stay for output.grace_hours, because programs may be reading them" in text
    assert not list(root.rglob("_WITHDRAWN"))
    text, _ = prune.run(RunContext("prune", config, RUN_DATE), KEEP, dry_run=False)
    assert "A later prune deletes them." in text
    assert len(list(root.rglob("_WITHDRAWN"))) > 10


def test_a_date_that_is_published_meanwhile_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition, real = LakePaths(str(root)).scores.partition(day(4)), prune._delete

    def publishes(lake: LakePaths, item: Any, grace_hours: float) -> None:
        if item.partition is not None and item.partition.path == partition.path:
            prune_lake.publish(partition)
        real(lake, item, grace_hours)

    monkeypatch.setattr(prune, "_delete", publishes)
    run(root)
    assert is_whole(partition, read_manifest(partition))


def test_two_prunes_at_once_delete_the_same(
    built: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second prune runs from its plan to its end while the first one is between plan and deletion."""
    alone = prune_lake.copy(built, tmp_path / "alone")
    run(alone)
    real, again = prune._delete_all, [True]

    def both(*arguments: Any) -> None:
        if again.pop():
            again.append(False)
            run(root)
        real(*arguments)

    monkeypatch.setattr(prune, "_delete_all", both)
    run(root)
    assert entries_of(root) == entries_of(alone)


def test_files_that_cannot_be_deleted_are_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: str) -> bool:
        raise PermissionError("read-only")

    monkeypatch.setattr(prune, "_WAIT_S", 0)
    monkeypatch.setattr(file_io, "delete_if_present", fails)
    with pytest.raises(InfrastructureError, match="candidate_items 2026-01-06 cannot be deleted: read-only"):
        run(root)


def test_too_few_days_are_refused(root: Path) -> None:
    history = {"column": "history", "length": 3, "days": 2}
    before = entries_of(root)
    with pytest.raises(ConfigError) as error:
        run(root, 4, history=history)
    assert "split.train_days=1 + split.validation_days=1 + split.test_days=1 + history.days=2" in str(
        error.value
    )
    assert "--keep-days with at least 5" in str(error.value)
    with pytest.raises(ConfigError, match="with at least 3"):
        run(root, 0)
    with pytest.raises(ConfigError, match="at most 36,500 days can be kept"):
        run(root, 10**9)
    with pytest.raises(ConfigError, match="with at least 1"):
        run(root, 0, split={"by": "fraction"})
    assert entries_of(root) == before


def test_a_folder_without_tables_is_no_lake(tmp_path: Path) -> None:
    prune_lake.write(f"{tmp_path}/nowhere/runs/dt=2026-01-01/prune-1.json")  # the record of a failed prune
    with pytest.raises(ConfigError, match="is not a lake"):
        run(tmp_path / "nowhere")


@pytest.mark.processes
def test_build_features_has_no_new_work_after_a_prune(tmp_path: Path) -> None:
    split = {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1, "min_train_days": 1}
    config = cases.write_config(tmp_path, GROUPS, {"split": split})
    for seed, one in enumerate(DAYS[:4]):
        cases.write_day(tmp_path / f"raw/dt={one}", cases.make_lines(one, 60, seed))
    workers, lake = erased_lake.workers(tmp_path), Path(config.lake)
    champion = cases.run_build(workers, config, day(3)).workflow.version
    cases.run_build(workers, config, day(4), champion)
    prune_lake.age(lake, hours=48)
    prune.run(RunContext("prune", config, day(4)), WINDOW, dry_run=False)
    tables = published(lake)
    assert tables["quarantine"] == tables["value_counts"] == DAYS[1:4]
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()}
    cases.run_build(workers, config, day(4), champion)
    assert {path: path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()} == before


@pytest.mark.processes
def test_other_tools_do_not_find_deleted_dates_on_an_object_store(tmp_path: Path) -> None:
    with servers.bucket(tmp_path, "pruned"):
        lake = LakePaths("s3a://pruned/lake")
        for one in DAYS[6:]:
            prune_lake.publish(lake.scores.partition(one))
        time.sleep(1.1)  # the store records modification times in seconds
        config = config_of(tmp_path).model_copy(update={"lake": lake.root})
        config = config.model_copy(update={"output": config.output.model_copy(update={"grace_hours": 0.0})})
        prune.run(RunContext("prune", config, RUN_DATE), KEEP, dry_run=False)
        table = f"{lake.root}/_data/scores"
        paths = other_tools._load(table).get_add_actions().column("path").to_pylist()  # type: ignore[union-attr]
        assert {path.split("/")[0] for path in paths} == {f"dt={one}" for one in DAYS[8:]}
        files = [file.path for file in list_lake(lake) if "_delta_log" not in file.path]
        assert not [path for path in files if f"dt={day(7)}" in path or f"dt={day(8)}" in path]
