"""Erasing users: nothing of them is left, all other rows stay, and the next runs go on without them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.load import load_config
from conf.types import Config, Deliver
from etl.erasure import carry_out
from etl.erasure.carry_out import texts_with_ids
from etl.erasure.lake_tables import UsersToErase
from etl.ops.tables import VOCABULARY, workflow_table
from etl.passes import passes_of, raw_days
from etl.raw.erased_users import (
    ERASED,
    ErasedList,
    ErasedUsers,
    LineFields,
    add_erased,
    list_or_new,
    read_erased,
    require_listed,
)
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import load_local
from jobs import erase_user
from jobs.erase_user import run
from scoring.delivery.published_lists import Erased, EraseRequest
from scoring.delivery.sinks import read_settings
from storage import file_io
from storage.dataset import read_dataset, split_files
from storage.feature_spec import NULL_ID
from storage.manifest import FileEntry, Manifest, read_manifest, replace_manifest
from storage.paths import LakePaths, Partition
from storage.publish import publish_rows
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.erasure import erased_lake as lakes
from tests.etl.erasure.erased_lake import DAYS, FIRST, LONGER, PREFIX, REJECTED, RUN_DATE, USER
from tests.processes import fork_server

pytestmark = pytest.mark.processes

TWO = [USER, PREFIX]
LATER = ["2026-01-05", "2026-01-06", "2026-01-07"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The lake before an erasure; tests erase from copies."""
    return lakes.build_lake(tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="module")
def erased(original: Config, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The lake after two users were erased at once."""
    config = _copy(original, tmp_path_factory.mktemp("erased"))
    _erase(config, TWO)
    return config


def _copy(config: Config, folder: Path) -> Config:
    shutil.copytree(config.lake, folder / "lake")
    return config.model_copy(update={"lake": str(folder / "lake")})


def _erase(config: Config, users: list[str], run_date: str = RUN_DATE) -> tuple[str, dict[str, Any]]:
    text, summary = run(RunContext("erase_user", config, run_date), users, dry_run=False)
    return text, dict(summary.facts)


def _row_ids(config: Config, user: str) -> dict[str, set[int]]:
    """The row_ids of a user's features, by day."""
    table = LakePaths(config.lake).features(read_dataset(LakePaths(config.lake), RUN_DATE).workflow_version)
    rows = {day: cases.read_rows(table.partition(day)) for day in DAYS}
    return {day: {*of_day["row_id"][of_day["user_key"] == user]} for day, of_day in rows.items()}


def test_no_text_of_the_lake_has_the_id(original: Config, erased: Config) -> None:
    """Also not in leftovers of killed jobs and in replaced files. Ids that only begin like it stay."""
    words = [re.compile(rf"{user}(?!\d)") for user in TWO]
    before, after = lakes.texts_in_lake(original), lakes.texts_in_lake(erased)
    assert all(any(word.search(text) for text in before) for word in words)
    assert [text[:200] for text in after if any(word.search(text) for word in words)] == []
    assert any(LONGER in text for text in after)
    assert any("user 0" in text for text in after if text.startswith("{"))  # a file of another table


def test_all_other_rows_stay_in_their_order(original: Config, erased: Config) -> None:
    before, after = lakes.frames(original), lakes.frames(erased)
    row_ids = {user: _row_ids(original, user) for user in TWO}
    tables_with_users = set()
    for name, rows in before.items():
        if name.startswith(("value_counts", "typed")):
            assert name not in after  # counted again by the next run
            continue
        of_users = np.logical_or.reduce([lakes.is_of(rows, user, row_ids[user]) for user in TWO])
        if of_users.any():
            tables_with_users.add(name.split("/")[0].split()[0])
        if name.endswith(VOCABULARY):
            rows = rows.assign(value=rows["value"].mask(of_users, "\x1ferased:" + rows["id"].astype(str)))
            of_users = np.zeros(len(rows), bool)
        expected = rows[~of_users].reset_index(drop=True)
        pd.testing.assert_frame_equal(after[name].reset_index(drop=True), expected)
    expected_tables = {"features", "users", "candidates", "recommendations", "scores", "last_clicks"}
    assert tables_with_users == {*expected_tables, "quarantine", "workflow"}


def test_the_id_in_a_vocabulary_stays_but_is_not_looked_up(original: Config, erased: Config) -> None:
    before, after = LakePaths(original.lake), LakePaths(erased.lake)
    for run_date in (FIRST, RUN_DATE):
        version = read_dataset(after, run_date).workflow_version
        entries = cases.read_rows(workflow_table(before, version, VOCABULARY))
        ids = entries[entries["column"] == "user"].set_index("value")["id"]
        assert ids.size, "the vocabulary of users"
        workflows = load_local(before, version), load_local(after, version)
        for user, number in ids.items():
            old, new = (workflow.encode_values({"user": user}, ["user"])["user"] for workflow in workflows)
            assert old == number
            assert new == (2 if user in TWO else number)
        stored, rare = lakes.workflow_json(erased, version), workflow_table(after, version, "rare")
        assert stored["tables"]["rare"] == read_manifest(rare).rows
        frame = cases.read_rows(rare)
        of_users = frame[frame["column"] == "user"] if len(frame) else frame
        facts = stored["vocabularies"]["user"]
        assert facts["rare_values"] == len(of_users)
        assert facts["entries"] == len(ids)


def test_the_next_runs_neither_fail_nor_publish_the_users(original: Config, tmp_path: Path) -> None:
    """build_features finds its tables up to date, and a training finds the rows of its dataset."""
    config = _copy(original, tmp_path)
    _erase(config, TWO)
    lake = LakePaths(config.lake)
    before = lakes.frames(config)
    stamps = _kept_manifests(config)
    lakes.build_twice(tmp_path, config)
    after = lakes.frames(config)
    for name, rows in before.items():
        pd.testing.assert_frame_equal(after[name], rows)
    assert stamps == _kept_manifests(config)
    for run_date in (FIRST, RUN_DATE):
        assert split_files(lake, read_dataset(lake, run_date), "train")
    # The tables that were emptied are those of a lake that has never read the users.
    never = config.model_copy(update={"lake": str(tmp_path / "never/lake")})
    shutil.copytree(lake.erasures, Path(never.lake) / "erasures")
    lakes.build_twice(tmp_path / "never", never)
    for day in DAYS:
        profiles = [LakePaths(one.lake).profiles("hard").partition(day) for one in (config, never)]
        assert read_manifest(profiles[0]).facts == read_manifest(profiles[1]).facts
        for table in ("value_counts", "quarantine"):
            first, second = (getattr(LakePaths(one.lake), table).partition(day) for one in (config, never))
            pd.testing.assert_frame_equal(cases.read_rows(first), cases.read_rows(second))
            manifests = read_manifest(first), read_manifest(second)
            assert manifests[0].dropped == manifests[1].dropped
            assert manifests[0].digest == manifests[1].digest
    assert read_manifest(lake.quarantine.partition(DAYS[0])).dropped[ERASED] > 4


def _kept_manifests(config: Config) -> dict[str, Any]:
    """What the manifests of features and datasets say, and of users, which are computed from both."""
    kinds = ("features/", "datasets", "users/", "items/")
    return {name: facts for name, facts in lakes.manifests(config).items() if name.startswith(kinds)}


def test_a_date_of_the_lake_is_not_made_again(original: Config, erased: Config) -> None:
    """The inputs of every partition refer to the digests after the erasure, as they did before."""
    before, after = lakes.manifests(original), lakes.manifests(erased)
    old = {facts[0]: name for name, facts in before.items()}
    new = {facts[0]: name for name, facts in after.items()}
    for name, facts in before.items():
        for key, digest in facts[1].items():
            if digest in old:
                assert new[after[name][1][key]] == old[digest], (name, key)
    version = read_dataset(LakePaths(erased.lake), RUN_DATE).workflow_version
    users = f"users/{version} {RUN_DATE}"
    dataset = read_dataset(LakePaths(erased.lake), RUN_DATE)
    combined = read_manifest(LakePaths(erased.lake).datasets.partition(RUN_DATE)).inputs["features"]
    assert after[users][1]["features"] == combined != before[users][1]["features"]
    assert after[f"candidates/{version} {RUN_DATE}"][1]["dataset"] == dataset.digest


def test_numbers_in_manifests_are_those_of_the_rows_left(original: Config, erased: Config) -> None:
    facts, old = (lakes.manifests(one)[f"recommendations {RUN_DATE}"][5] for one in (erased, original))
    assert old["users"] - facts["users"] == 2
    assert (facts["users_without"], facts["users_with_fewer"]) == (0, 0)
    lake = LakePaths(erased.lake)
    for run_date in (FIRST, RUN_DATE):
        dataset = read_dataset(lake, run_date)
        table = lake.features(dataset.workflow_version)
        for member in (member for members in dataset.splits.values() for member in members):
            rows = cases.read_rows(table.partition(member.dt))
            assert member.clicks == rows["label"].sum()
            manifest = read_manifest(table.partition(member.dt))
            assert manifest.rows_in == manifest.rows + sum(manifest.dropped.values())


def test_a_user_who_comes_back_gets_a_new_id_with_the_next_extension(
    original: Config, tmp_path: Path
) -> None:
    """Rows after the last day that the lake has read count as those of a new user."""
    config = _copy(original, tmp_path)
    shutil.copytree(config.data, tmp_path / "raw")
    config = config.model_copy(update={"data": str(tmp_path / "raw")})
    for seed, day in enumerate(LATER):
        cases.write_day(tmp_path / f"raw/dt={day}", cases.make_lines(day, 150, seed))
    lake = LakePaths(config.lake)
    parent = read_dataset(lake, RUN_DATE).workflow_version
    before = _ids_of_users(lake, parent)
    user = max(before.index)
    assert user in {f"user {number}" for number in range(9)}
    _erase(config, [user], run_date=DAYS[0])  # the lake has read later days too
    known = read_erased(lake)
    assert known is not None
    assert set(known.through.values()) == {RUN_DATE}
    larger = {"ops": [{"categorify": {"max_size": 20}}]}
    features = [
        group.model_copy(update=larger) if group.columns == ["user"] else group for group in config.features
    ]
    config = lakes.retraining(config).model_copy(update={"features": features})
    cases.run_build(lakes.workers(tmp_path), config, LATER[-1], parent)
    extension = read_dataset(lake, LATER[-1]).workflow_version
    after = _ids_of_users(lake, extension)
    assert after[f"\x1ferased:{before[user]}"] == before[user]
    assert after[before.index.drop(user)].to_dict() == before.drop(user).to_dict()
    rows = {day: cases.read_rows(lake.features(extension).partition(day)) for day in (RUN_DATE, LATER[0])}
    assert user not in set(rows[RUN_DATE]["user_key"])
    again = rows[LATER[0]][rows[LATER[0]]["user_key"] == user]["user"]
    assert set(again) == {after[user]}
    assert after[user] > before.max()


def _ids_of_users(lake: LakePaths, version: str) -> pd.Series:
    """The id of each value in the vocabulary of users."""
    entries = cases.read_rows(workflow_table(lake, version, VOCABULARY))
    return entries[entries["column"] == "user"].set_index("value")["id"]


def _erase_and_die(config: Config, publications: int) -> None:
    """Erases, and kills this process before this publication."""
    done = iter(range(publications))

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if next(done, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return called

    for name in (
        "publish_files",
        "replace_manifest",
        "refresh_workflow",
        "delete_leftovers",
    ):
        setattr(carry_out, name, counted(getattr(carry_out, name)))
    _erase(config, TWO)
    os._exit(0)


@pytest.fixture(scope="module")
def server() -> Iterator[BaseContext]:
    with fork_server("tests.etl.erasure.test_erase_user") as context:
        yield context


@pytest.mark.parametrize(
    "publications",
    [0, pytest.param(3, marks=pytest.mark.extended), 12, pytest.param(23, marks=pytest.mark.extended), 38],
)
def test_after_a_kill_the_job_continues(
    publications: int, original: Config, erased: Config, server: Any, tmp_path: Path
) -> None:
    config = _copy(original, tmp_path)
    process = server.Process(target=_erase_and_die, args=(config, publications))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert lakes.record_of(config)["status"] == "started"
    _erase(config, TWO)
    assert lakes.manifests(config) == lakes.manifests(erased)
    expected = lakes.frames(erased)
    assert {name: len(rows) for name, rows in lakes.frames(config).items()} == {
        name: len(rows) for name, rows in expected.items()
    }
    record, uninterrupted = lakes.record_of(config), lakes.record_of(erased)
    assert record["status"] == "complete"
    assert record["tables"] == uninterrupted["tables"]
    assert not any(re.search(rf"{USER}(?!\d)", text) for text in lakes.texts_in_lake(config))


def test_the_record_names_tables_and_what_remains_but_no_id(original: Config, erased: Config) -> None:
    record = lakes.record_of(erased)
    lake = LakePaths(erased.lake)
    known = read_erased(lake)
    assert known is not None
    assert record["users"] == sorted(known.digest(user) for user in TWO)
    assert set(known.through.values()) == {RUN_DATE}
    row_ids = {user: _row_ids(original, user) for user in TWO}
    expected = {
        name: int(sum(lakes.is_of(rows, user, row_ids[user]).sum() for user in TWO))
        for name, rows in lakes.frames(original).items()
    }
    listed = {f"{one['table']} {one['partition']}": one["rows"] for one in record["tables"] if one["rows"]}
    assert listed == {name: count for name, count in expected.items() if count}
    assert [path.rsplit("/", 2)[-2] for path in record["remains"]["raw_files"]] == [f"dt={d}" for d in DAYS]
    assert [path.rsplit("/", 1)[1] for path in record["remains"]["texts"]] == ["build_features.log"]
    assert record["files_deleted"] >= 1
    assert "raw log is not changed" in record["notes"][0]


def test_models_that_keep_weights_are_named(original: Config, tmp_path: Path) -> None:
    config = _copy(original, tmp_path)
    lake = LakePaths(config.lake)
    version = read_dataset(lake, RUN_DATE).workflow_version
    for name, workflow in (("m1", version), ("m2", "another")):
        file_io.replace_json(f"{lake.models('hard')}/{name}/model.json", {"workflow_version": workflow})
    _erase(config, [USER])
    models = lakes.record_of(config)["remains"]["models"]
    expected = {"name": "hard", "version": "m1", "workflow_version": version, "features": ["user"]}
    in_vocabulary = USER in set(
        cases.read_rows(workflow_table(LakePaths(original.lake), version, VOCABULARY))["value"]
    )
    assert models == ([expected] if in_vocabulary else [])


def test_a_dry_run_changes_nothing(original: Config, erased: Config) -> None:
    before = lakes.snapshot(original)
    text, summary = run(RunContext("erase_user", original, RUN_DATE), TWO, dry_run=True)
    assert lakes.snapshot(original) == before
    assert summary.facts["removed"] == sum(one["rows"] for one in lakes.record_of(erased)["tables"])
    assert "would be removed" in text
    assert summary.output is None


def test_users_without_rows_are_only_added_to_the_list(original: Config, tmp_path: Path) -> None:
    config = _copy(original, tmp_path)
    before = lakes.frames(config)
    text, facts = _erase(config, ["stranger"])
    assert "No table of the lake has rows" in text
    assert (facts["removed"], facts["status"]) == (0, "complete")
    assert lakes.frames(config).keys() == before.keys()
    known = read_erased(LakePaths(config.lake))
    assert known is not None
    assert len(known.through) == 1


def test_a_user_of_rejected_lines_only(original: Config, tmp_path: Path) -> None:
    config = _copy(original, tmp_path)
    _erase(config, [REJECTED])
    quarantine = [cases.read_rows(LakePaths(config.lake).quarantine.partition(day)) for day in DAYS]
    assert not any(REJECTED in line for rows in quarantine for line in rows["line"])
    assert {one["table"] for one in lakes.record_of(config)["tables"]} == {"quarantine"}


def test_one_after_the_other_is_like_both_at_once(original: Config, erased: Config, tmp_path: Path) -> None:
    config = _copy(original, tmp_path)
    for user in TWO:
        _erase(config, [user])
    assert lakes.manifests(config) == lakes.manifests(erased)
    text, facts = _erase(config, [USER])
    assert "was removed before" in text
    assert facts["status"] == "complete"


@pytest.mark.parametrize("wrong", ["", "a\tb", "é" * 129])
def test_what_is_no_id_is_refused(original: Config, wrong: str) -> None:
    with pytest.raises(ConfigError, match="is not the id of a user"):
        run(RunContext("erase_user", original, RUN_DATE), [USER, wrong], dry_run=True)


def test_a_log_without_keys_has_no_users(original: Config) -> None:
    config = original.model_copy(update={"keys": None})
    with pytest.raises(ConfigError, match="keys"):
        run(RunContext("erase_user", config, RUN_DATE), [USER], dry_run=True)


def test_rows_that_another_job_publishes_meanwhile_are_noticed(
    original: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a partition is replaced, or when all have been replaced. The next attempt completes the erasure."""
    config = _copy(original, tmp_path)
    lake = LakePaths(config.lake)
    partition = lake.last_clicks.partition(DAYS[0])
    rows = pa.table({"user_key": [USER], "items": [["item 1"]]})
    plan, delete = erase_user.plan_erasure, erase_user.carry_out

    def publish() -> None:
        publish_rows(rows, partition, inputs={"raw": "new"}, row_group_rows=10)

    def planned_before(*arguments: Any) -> Any:
        planned = plan(*arguments)
        publish()
        return planned

    def carried_out_before(*arguments: Any) -> Any:
        deleted = delete(*arguments)
        publish()
        return deleted

    for name, function, message in (
        ("plan_erasure", planned_before, "has replaced .* during the erasure"),
        ("carry_out", carried_out_before, "has published rows .* during the erasure"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(erase_user, name, function)
            with pytest.raises(InfrastructureError, match=message):
                _erase(config, [USER])
    assert lakes.record_of(config)["status"] == "started"
    _erase(config, [USER])
    assert lakes.record_of(config)["status"] == "complete"
    assert cases.read_rows(partition).empty


def test_sinks_are_emptied_and_a_sink_that_cannot_is_named(
    original: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _copy(original, tmp_path)
    lists = read_manifest(LakePaths(config.lake).recommendations.partition(RUN_DATE))
    folder = tmp_path / "app"
    partition = Partition("app", RUN_DATE, f"{folder}/dt={RUN_DATE}")
    data = Path(partition.file(f"{partition.data}/a1/part-0.json"))
    data.parent.mkdir(parents=True)
    lines = [{"user_id": user, "items": [{"item_id": "item 1"}] * 2} for user in (LONGER, USER)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    entry = FileEntry(f"{partition.data}/a1/part-0.json", 2, data.stat().st_size, (2,))
    facts = {"users": 2, "entries": 4}
    inputs = {"recommendations": lists.digest}
    schema = (("line", "json"),)
    replace_manifest(partition, Manifest("app", RUN_DATE, (entry,), schema, inputs, 4, facts=facts))
    sink = {"kind": "json_lines", "name": "app", "path": str(folder), "compression": "none"}
    [known] = read_settings(Deliver.model_validate({"sinks": [sink]}), {})
    other = (SimpleNamespace(), SimpleNamespace(name="other", kind="other"))
    monkeypatch.setattr(erase_user, "read_settings", lambda *_: [known, other])
    _erase(config, [USER])
    manifest = read_manifest(partition)
    [left] = Path(partition.file(manifest.files[0].path)).read_text().splitlines()
    assert json.loads(left) == lines[0]
    assert not data.exists()
    assert (manifest.rows, manifest.rows_in, manifest.facts) == (1, 2, {"users": 1, "entries": 2})
    now = read_manifest(LakePaths(config.lake).recommendations.partition(RUN_DATE))
    assert manifest.inputs["recommendations"] == now.digest != lists.digest
    record = lakes.record_of(config)
    assert [(one["name"], one["rows"]) for one in record["sinks"]] == [("app", 1), ("other", None)]
    assert any(note.startswith("Sink other: ") for note in record["notes"])


def test_a_damaged_file_stops_the_job_before_it_changes_anything(original: Config, tmp_path: Path) -> None:
    config = _copy(original, tmp_path)
    lake = LakePaths(config.lake)
    partition = lake.recommendations.partition(RUN_DATE)
    path = Path(partition.file(read_manifest(partition).files[0].path))
    path.write_bytes(path.read_bytes()[:-20])
    before = lakes.snapshot(config)
    with pytest.raises(DataError, match="is damaged: it has"):
        _erase(config, [USER])
    assert lakes.snapshot(config) == before


def _arguments(config: Config, *words: str) -> Any:
    path = str(Path(config.data).parent / "config.yaml")
    assert load_config(path).name == config.name
    return erase_user._parser().parse_args(["--config", path, "--run-date", RUN_DATE, *words])


def test_the_command_takes_ids_from_options_and_files_and_lists_records(
    original: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _copy(original, tmp_path)
    context = RunContext("erase_user", config, RUN_DATE)
    file = tmp_path / "users.txt"
    file.write_text(f"{PREFIX}\n\n{USER}\n")
    summary = erase_user.erase(context, _arguments(config, "--user", USER, "--users-file", str(file)))
    assert summary.facts["users"] == 2
    json.loads(summary.line())
    erase_user.erase(context, _arguments(config, "--list"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split()[1:3] == ["2", f"{summary.facts['removed']:,}"]
    assert lines[-1].endswith("complete")


def test_only_line_feeds_divide_a_file_of_users(tmp_path: Path) -> None:
    """An editor may add a byte order mark and carriage returns; other separators may be part of an id."""
    file = tmp_path / "users.txt"
    file.write_bytes("\ufeff-dash\r\n lead\r\n\r\na\u2028b".encode())
    assert erase_user._ids(["7", "7"], file) == ["7", "-dash", " lead", "a\u2028b"]


def test_a_folder_without_tables_is_no_lake(original: Config, tmp_path: Path) -> None:
    """With a wrong path, the job must not say that users were removed."""
    config = original.model_copy(update={"lake": str(tmp_path / "wrong")})
    for dry_run in (True, False):
        with pytest.raises(DataError, match="wrong contains no tables, so no user was erased"):
            run(RunContext("erase_user", config, RUN_DATE), [USER], dry_run=dry_run)
    assert not (tmp_path / "wrong").exists()


def test_two_erasures_at_once_keep_the_users_of_both(
    original: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _copy(original, tmp_path)
    lake = LakePaths(config.lake)
    add_erased(lake, list_or_new(lake), ["an earlier one"], RUN_DATE)
    find, others = erase_user.plan_erasure, ["another stranger"]

    def find_while_another_erases(*arguments: Any) -> Any:
        if others:
            _erase(config, [others.pop()])
        return find(*arguments)

    monkeypatch.setattr(erase_user, "plan_erasure", find_while_another_erases)
    _erase(config, ["stranger"])
    require_listed(lake, ["stranger", "another stranger", "an earlier one"])
    with pytest.raises(InfrastructureError, match="another erasure has written"):
        add_erased(lake, ErasedList("another salt"), ["stranger"], RUN_DATE)
    with pytest.raises(InfrastructureError, match="lacks these users"):
        require_listed(lake, ["stranger", "a third one"])


def test_texts_are_searched_for_ids_as_they_are_written_there(tmp_path: Path) -> None:
    users = ["o'hara & co", "müller", "<short"]
    (tmp_path / "runs").mkdir()
    for name, text in {
        "html": "<td>o&#x27;hara &amp; co</td>",
        "json": json.dumps({"user": "müller"}),
        "plain": "müller,o'hara & co",
        "others": "ohara müllers &lt;shorts",
    }.items():
        (tmp_path / "runs" / name).write_text(text, encoding="utf-8")
    known = ErasedUsers("", frozenset())
    paths = texts_with_ids(
        LakePaths(str(tmp_path)), UsersToErase(frozenset(users), known, "user", LineFields(","), False)
    )
    assert [path.rsplit("/", 1)[1] for path in paths] == ["html", "json", "plain"]


def test_the_command_needs_users(original: Config, tmp_path: Path) -> None:
    context = RunContext("erase_user", original, RUN_DATE)
    with pytest.raises(ConfigError, match="no user is named"):
        erase_user.erase(context, _arguments(original, "--dry-run"))
    with pytest.raises(ConfigError, match="cannot be read"):
        erase_user.erase(context, _arguments(original, "--users-file", str(tmp_path / "none")))


def _small_log(
    folder: Path, misdated: int, id_of: str = "u{}", kind: str = "string", **sections: Any
) -> Config:
    """Three days with 40 rows; on the first day, `kiosk` has 30 more rows, `misdated` of another month."""
    names = {"ts": "int", "user": kind, "item": "string", "click": "int"}
    log = {
        "path": "{data}/{date}.csv",
        "format": "csv",
        "columns": [{"name": name, "type": kind} for name, kind in names.items()],
        "label": {"column": "click"},
        "event_time": {"column": "ts"},
    }
    (folder / "raw").mkdir()
    for number, day in enumerate(DAYS[:3]):
        start = 1767225600 + number * 86400
        lines = [f"{start + row},{id_of.format(row % 7)},i{row % 5},{row % 2}" for row in range(40)]
        times = [start - 30 * 86400 if row < misdated else start for row in range(30 if number == 0 else 0)]
        lines += [f"{time + row},kiosk,i{row % 5},{row % 2}" for row, time in enumerate(times)]
        (folder / f"raw/{day}.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    values = {
        "name": "small",
        "log": log,
        "features": [
            {"columns": ["item"], "kind": "categorical", "ops": [{"categorify": {"share": "item"}}]}
        ],
        "scopes": {"item": ["item"]},
        "split": {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1},
        "quality": {"max_misdated_share": 0.5},
    }
    return cases.write_config(folder, values, sections)


@pytest.mark.parametrize("prepared", [True, False])
def test_rows_with_a_wrong_date_are_not_counted_after_their_user_is_erased(
    tmp_path: Path, prepared: bool
) -> None:
    """Of the 70 rows of the first day, 30 have a wrong date; after the erasure, none of the 40 rows has."""
    history = {"history": {"length": 2, "days": 1}} if prepared else {}
    config = _small_log(tmp_path, misdated=30, **history)
    built = cases.run_build(lakes.workers(tmp_path), config, FIRST)
    assert built.counts[DAYS[0]].misdated is not None
    assert built.counts[DAYS[0]].misdated.rows == 30
    _erase(config, ["kiosk"], FIRST)
    again = cases.run_build(lakes.workers(tmp_path), config, FIRST, built.workflow.version)
    counts = again.counts[DAYS[0]]
    assert (counts.good, counts.dropped) == (40, {ERASED: 30})
    assert counts.misdated is None or counts.misdated.rows == 0


def test_days_that_were_only_checked_are_counted_again(tmp_path: Path) -> None:
    """No table says how many rows of such a day belong to the user."""
    config = _small_log(tmp_path, misdated=0)
    lake, plan = LakePaths(config.lake), plan_of(config)
    days = [day for of_split in raw_days(plan, FIRST).values() for day in of_split]
    counts = passes_of(lakes.workers(tmp_path), plan, lake).scan_days(days)
    assert [counts[day].good for day in DAYS[:3]] == [70, 40, 40]
    text, _ = _erase(config, ["kiosk"], FIRST)
    assert re.findall(r"value_counts +(\S+) +0 +emptied", text) == DAYS[:3]
    built = cases.run_build(lakes.workers(tmp_path), config, FIRST)
    assert [built.counts[day].good for day in DAYS[:3]] == [40, 40, 40]
    assert built.counts[DAYS[0]].dropped == {ERASED: 30}
    before = lakes.manifests(config)
    _erase(config, ["nobody"], FIRST)
    assert lakes.manifests(config) == before


@pytest.mark.parametrize(
    "kind, user, lines, others",
    [
        ("int", "007", ["1,7.0,i1,x", '1,"+007",i1'], ["1,70,i7,7.5"]),
        ("string", "Doe, Ann", ['1,"Doe, Ann",i1,x'], ['1,"Ann",Doe,x']),
        ("string", "7", ["1,7,i1,x"], ["1,7.0,i1,x", "1,007,i1"]),
    ],
)
def test_rejected_lines_are_removed_if_readers_find_the_id_in_them(
    tmp_path: Path, kind: str, user: str, lines: list[str], others: list[str]
) -> None:
    config = _small_log(tmp_path, misdated=0, kind=kind)
    partition = LakePaths(config.lake).quarantine.partition(FIRST)
    rejected = [*lines, *others]
    table = pa.table({"line": rejected, "reason": ["integer:click"] * len(rejected)})
    dropped = {"integer:click": len(rejected)}
    publish_rows(table, partition, inputs={}, row_group_rows=9, rows_in=9, dropped=dropped)
    _erase(config, [user], FIRST)
    assert cases.read_rows(partition)["line"].tolist() == others
    assert read_manifest(partition).dropped[ERASED] == len(lines)


NUMBERED = {
    "users": {
        "path": "{data}/users.csv",
        "format": "csv",
        "columns": [{"name": "user", "type": "int"}, {"name": "country", "type": "string"}],
    },
    "features": [{"columns": ["item", "country"], "kind": "categorical", "ops": ["categorify"]}],
    "scopes": {"item": ["item"], "user": ["country"]},
}


def test_an_erased_user_has_no_list_under_the_integer_of_the_table_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has 00000 to 00006 and, on some days, 3. The table of users has 0 to 9, and 7 to 9 have lists."""
    config = _small_log(tmp_path, misdated=0, id_of="0000{}", **NUMBERED)
    lake, table = LakePaths(config.lake), tmp_path / "raw/users.csv"
    table.write_text("user,country\n" + "".join(f"{user},c{user}\n" for user in range(10)))
    for day in DAYS[:3]:
        path = tmp_path / f"raw/{day}.csv"
        path.write_text(path.read_text().replace(",kiosk,", ",3,"))
    built = cases.run_build(lakes.workers(tmp_path), config, FIRST)

    def users_of(day: str) -> list[str]:
        return sorted(cases.read_rows(lake.users(built.workflow.version).partition(day))["user_key"])

    both = ["00000", "00001", "00002", "00003", "00004", "00005", "00006", "3"]
    known = [*both, "7", "8", "9"]
    assert users_of(FIRST) == known
    lists = pa.table({"user_id": known, "position": pa.array([1] * 11, pa.int32()), "item_id": ["i1"] * 11})
    publish_rows(lists, lake.recommendations.partition(FIRST), inputs={}, row_group_rows=9)
    asked: list[frozenset[str]] = []

    def erase(_: Any, request: EraseRequest) -> Erased:
        asked.append(request.users)
        return Erased("s", 0)

    sink = (SimpleNamespace(erase=erase), SimpleNamespace(name="s", kind="s"))
    monkeypatch.setattr(erase_user, "read_settings", lambda *_: [sink])
    _erase(config, ["00003", "00004", "00009"], FIRST)
    assert asked == [{"00003", "00004", "4", "00009", "9"}]
    left = [user for user in known if user not in asked[0]]
    assert users_of(FIRST) == left
    assert cases.read_rows(lake.recommendations.partition(FIRST))["user_id"].tolist() == left
    # 3 is another user of the log, and loses only the attributes, which may be those of 00003.
    rows = enumerate(["00000", "00001", "3"] * 10)
    lines = [f"{1767225600 + 3 * 86400 + row},{user},i{row % 5},{row % 2}" for row, user in rows]
    (tmp_path / f"raw/{DAYS[3]}.csv").write_text("\n".join(["ts,user,item,click", *lines]) + "\n")
    cases.run_build(lakes.workers(tmp_path), config, RUN_DATE, built.workflow.version)
    assert users_of(RUN_DATE) == left
    served = cases.read_rows(lake.users(built.workflow.version).partition(RUN_DATE)).set_index("user_key")
    assert served.index[served["country"] == NULL_ID].tolist() == ["3"]
