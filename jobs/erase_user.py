"""Erases users from the lake and from the sinks, and writes a record for auditors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.messages import counted
from conf.types import Config
from etl.erasure.carry_out import (
    SHORTEST_ID,
    Record,
    carry_out,
    delete_old_files,
    models_with_users,
    planned,
    raw_files,
    read_record,
    read_records,
    record_path,
    texts_with_ids,
    write_record,
)
from etl.erasure.lake_tables import UsersToErase
from etl.erasure.plan import DigestChanges, ErasurePlan, plan_erasure, with_ids_of_lists
from etl.raw.erased_users import add_erased, list_or_new, require_listed
from etl.raw.row_rules import RULE, are_bad_keys
from etl.raw.text_values import integer_text
from jobs.command_line import job_parser
from jobs.runner import run_with_options
from scoring.delivery.published_lists import EraseRequest
from scoring.delivery.sinks import erase_from, read_settings
from storage import file_io
from storage.job_summary import JobSummary
from storage.paths import DATA, LakePaths
from storage.run_context import RunContext, require
from training.registry.kept_models import saved_models

DESCRIPTION = (
    "Erases users from the lake and from the sinks: their rows in all tables, their ids in vocabularies, and "
    "old data files. From then on, jobs leave out the rows of these users when they read the raw log of the "
    "run date, of earlier days, or of days that the lake has already read. The raw log and trained models "
    "are not changed; the record in <lake>/erasures says what remains. No other job may use the lake at "
    "the same time. If the job is interrupted, start it again with the same options: it continues."
)

_RAW = (
    "The raw log is not changed. Jobs leave out the rows of these users, up to the day `through`, whenever "
    "they read it again. Delete the rows at their source, or delete the raw files when no run needs them."
)
_MODELS = (
    "The listed models keep one row of weights for each user, under a number that no longer belongs to a "
    "user. A retraining that continues from one of these models keeps this row. To remove it, train a "
    "newly initialised model with workflow.mode=fit, then delete the old model versions."
)
_STATISTICS = (
    "Counts, means and other statistics over all users do not change. This includes the statistics of items, "
    "and those in models."
)
_TEXTS = (
    f"Run records, reports and logs were searched for ids of at least {SHORTEST_ID} characters. Delete the "
    "listed files. Spark's event logs and copies outside of the lake were not searched."
)
_UNKNOWN_SINKS = "Sinks that have no function for erasing users still contain the rows of these users."


def run(context: RunContext, ids: Sequence[str], *, dry_run: bool) -> tuple[str, JobSummary]:
    """Erases users, or reports what would be removed.

    Args:
        context: the context of the run. From now on, jobs leave out the users' rows up to its run date, or up
            to the last day for which the lake contains rows of the users, if that is later.
        ids: the ids of the users, as in the log.
        dry_run: whether the function only reports, without changing files.

    Returns:
        A text for a terminal, and the summary.

    Raises:
        ConfigError: an id is not a possible user id, or the configuration has no section `keys`.
        DataError: the lake has no published tables, or a file in the lake is damaged.
        InfrastructureError: another job uses the lake at the same time.
    """
    require(context.config, "keys")
    _check(ids)
    ids = _as_keys(context.config, ids)
    # If a sink has wrong settings, this call raises an error before the job changes files.
    read_settings(context.config.deliver, context.config.folders)
    lake = context.lake
    _require_tables(lake)
    known = list_or_new(lake)
    users = UsersToErase.of(frozenset(ids), known.salt, known.digest, context.config)
    record = read_record(lake, context.run_date, users)
    with context.phase("search"):
        users = with_ids_of_lists(lake, context.config, users)
        plan = plan_erasure(lake, context.config, users, record.digests)
    done, record = record.status == "complete", planned(record, plan)
    through = max([record.through, context.run_date, *plan.days])
    record = replace(record, through=through, remains=_remains(context, plan, record.remains))
    if dry_run:
        return _text(record, "would be removed"), _summary(lake, record, dry_run=True)
    # From now on, jobs leave out the rows of the users, so no job publishes them again.
    add_erased(lake, known, ids, through)
    if done and not plan.rows and not context.config.deliver.sinks:
        record = replace(record, status="complete")
        return _text(record, "was removed before"), _summary(lake, record, dry_run=False)
    write_record(lake, record)
    with context.phase("tables"):
        deleted = carry_out(lake, plan)
        _require_none(plan_erasure(lake, context.config, users, record.digests))
        deleted += delete_old_files(lake)
    with context.phase("sinks"):
        sinks = _erase_sinks(context, users, record)
    with context.phase("remaining"):
        remains = {**record.remains, "texts": texts_with_ids(lake, users)}
    require_listed(lake, ids)
    record = replace(
        record,
        status="complete",
        completed_at=file_io.utc_now(),
        digests={},
        files_deleted=record.files_deleted + deleted,
        sinks=(*record.sinks, *(sink for sink in sinks if sink["rows"] or not done)),
        remains=remains,
        notes=_notes(remains, sinks),
    )
    write_record(lake, record)
    return _text(record, "was removed"), _summary(lake, record, dry_run=False)


def list_records(lake: LakePaths) -> tuple[str, JobSummary]:
    """Returns a table of all records of a lake for a terminal, and the summary."""
    records = read_records(lake)
    lines = [f"  {'Record':<24}  {'Users':>6}  {'Rows':>10}  {'Started':<20}  Status"]
    lines += [
        f"  {one.name:<24}  {len(one.users):>6,}  {one.rows:>10,}  {one.started_at:<20}  {one.status}"
        for one in records
    ]
    facts = {"records": len(records)}
    return "\n".join(lines), JobSummary(lake.erasures, rows_in=None, rows_out=None, dropped=None, facts=facts)


def _check(ids: Sequence[str]) -> None:
    wrong = are_bad_keys(pa.array(ids, pa.string())).to_pylist()
    for user, is_wrong in zip(ids, wrong, strict=True):
        if is_wrong or not user:
            raise ConfigError(
                f"{user!r} is not the id of a user: {RULE}, and it must not be empty",
                "pass the ids as they are in the log, with --user, or one per line in --users-file",
            )


def _as_keys(config: Config, ids: Sequence[str]) -> list[str]:
    """Returns the ids as keys. If ids of the log are integers, `007` and `7.0` become the key `7`."""
    if config.keys is None or config.log.types[config.keys.user] != "int":
        return list(ids)
    return list(dict.fromkeys(integer_text(user) or user for user in ids))


def _require_tables(lake: LakePaths) -> None:
    """Raises DataError if no job has published a table: the path of the lake is probably wrong."""
    if not any(file_io.list_files(path) for path in (lake.datasets.path, f"{lake.root.rstrip('/')}/{DATA}")):
        raise DataError(
            f"{lake.root} contains no tables, so no user was erased: this is not the folder of the lake, or "
            "no job has run yet",
            "correct `lake` in the configuration or in --set, or erase users after the first run",
        )


def _require_none(left: ErasurePlan) -> None:
    if left.rows:
        raise InfrastructureError(
            "another job has published rows of these users during the erasure, for example in "
            f"{', '.join(sorted(left.rows)[:3])}",
            "wait until no other job uses the lake, then run erase_user again: it continues",
        )


def _remains(
    context: RunContext, plan: ErasurePlan, before: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """Returns the data that still contain the users.

    The result also contains what an earlier, interrupted attempt has recorded.
    """
    now: dict[str, Sequence[Any]] = {
        "raw_files": raw_files(context.config, plan),
        "models": models_with_users(saved_models(context.lake), plan),
        "texts": [],
    }
    return {
        name: [*before.get(name, ()), *(one for one in values if one not in before.get(name, ()))]
        for name, values in now.items()
    }


def _erase_sinks(context: RunContext, users: UsersToErase, record: Record) -> list[dict[str, Any]]:
    changes = DigestChanges(record.digests)
    digests = {old: changes.of(old) for old in record.digests}
    request = EraseRequest(users.ids | users.of_lists, digests, lambda: context.spark, context.recorder)
    results: list[dict[str, Any]] = []
    for module, settings in read_settings(context.config.deliver, context.config.folders):
        erased = erase_from(module, settings, request)
        of_sink = {"name": settings.name, "kind": settings.kind}
        if erased is None:
            results.append({**of_sink, "target": "", "rows": None, "remark": _UNKNOWN_SINKS})
        else:
            results.append({**of_sink, "target": erased.target, "rows": erased.rows, "remark": erased.remark})
    return results


def _notes(remains: Mapping[str, Sequence[Any]], sinks: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    notes = [_RAW, *([_MODELS] if remains["models"] else []), _STATISTICS, _TEXTS]
    notes += [f"Sink {sink['name']}: {sink['remark']}" for sink in sinks if sink["remark"]]
    return tuple(notes)


def _text(record: Record, what: str) -> str:
    """Returns a table of the removed data for a terminal."""
    number = len(record.users)
    lines = [f"{counted(number, 'user')}, days up to {record.through}: this {what}."]
    if not record.tables:
        lines.append("  No table of the lake has rows of these users.")
    else:
        lines.append(f"  {'Table':<44}  {'Partition':<12}  {'Rows':>8}  Change")
    lines += [
        f"  {one.table:<44}  {one.partition:<12}  {one.rows:>8,}  {one.change}" for one in record.tables
    ]
    for sink in record.sinks:
        rows = "" if sink["rows"] is None else f"{counted(sink['rows'], 'row')} "
        lines.append(f"  sink {sink['name']}: {rows}{sink['remark']}")
    for name, values in record.remains.items():
        lines += [f"  remains, {name}: {_shown(value)}" for value in values]
    return "\n".join([*lines, *(f"  {note}" for note in record.notes)])


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        features = ", ".join(value["features"])
        return (
            f"{value['name']} {value['version']}, workflow {value['workflow_version']}, features {features}"
        )
    return str(value)


def _summary(lake: LakePaths, record: Record, *, dry_run: bool) -> JobSummary:
    facts = {
        "users": len(record.users),
        "partitions": len(record.tables),
        "removed": record.rows,
        "files_deleted": record.files_deleted,
        "status": record.status,
        "dry_run": dry_run,
        "models": len(record.remains.get("models", ())),
        "sinks": [dict(sink) for sink in record.sinks],
    }
    output = None if dry_run else record_path(lake, record)
    return JobSummary(output, rows_in=None, rows_out=None, dropped=None, facts=facts)


def erase(context: RunContext, arguments: argparse.Namespace) -> JobSummary:
    """Erases the users of the command line or lists the records, prints a text, and returns the summary."""
    if arguments.list:
        text, summary = list_records(context.lake)
    else:
        users = _ids(arguments.user, arguments.users_file)
        text, summary = run(context, users, dry_run=arguments.dry_run)
    print(text, flush=True)
    return summary


def _ids(named: list[str], file: Path | None) -> list[str]:
    """Returns the distinct ids of --user and of the lines of --users-file.

    Raises:
        ConfigError: there is no id, or the file cannot be read.
    """
    lines: list[str] = []
    if file is not None:
        try:
            # Only line feeds end a line. Ids may contain other line separators, such as U+2028.
            text = file.read_bytes().decode("utf-8-sig")
            lines = [line.removesuffix("\r") for line in text.split("\n")]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--users-file {file} cannot be read: {error}",
                "pass a text file in UTF-8 with one id per line",
            ) from error
    ids = list(dict.fromkeys([*named, *(line for line in lines if line)]))
    if not ids:
        raise ConfigError("no user is named", "pass --user or --users-file, or --list for the records")
    return ids


def _parser() -> argparse.ArgumentParser:
    """Returns the command-line parser. It has the options that all jobs share, and those of erase_user.

    The options of erase_user name the users, preview an erasure, or list the records of earlier erasures.
    """
    parser = job_parser("erase_user", DESCRIPTION)
    parser.add_argument(
        "--user",
        nargs="+",
        default=[],
        metavar="ID",
        help="ids of the users, as they are in the log; use --user=ID for an id that begins with a dash",
    )
    parser.add_argument("--users-file", type=Path, metavar="FILE", help="text file with one id per line")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be removed; nothing is changed"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the records of erasures, without erasing users"
    )
    return parser


if __name__ == "__main__":
    run_with_options("erase_user", _parser(), erase, sys.argv[1:])
