"""`make audit`: looks up known vulnerabilities of the packages and jars in the lock files.

The command asks the database of OSV (https://osv.dev), which has the advisories for PyPI and for Maven.
requirements/audit.toml allows advisories, each with a reason and a date of expiry. Until this date, an
allowed advisory is no problem.

Exit codes: 0 no problem; 1 an advisory that is not allowed, or an entry that has expired; 2 the file of
allowed advisories is wrong; 4 the database cannot be reached.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from setup.console import SetupError, say
from setup.install import ROOT, VENV, site_packages
from setup.sbom import Package, locked_jars, locked_packages, spark_jars

ALLOWED = ROOT / "requirements/audit.toml"
SERVER = "https://api.osv.dev"
_LONGEST = timedelta(days=366)  # the longest time from the review of an entry until it expires
_QUERIES = 500  # in one request; the server accepts 1000
_TIMEOUT_S = 30
_EXIT_PROBLEM, _EXIT_CONFIGURATION, _EXIT_INFRASTRUCTURE = 1, 2, 4


class DatabaseError(SetupError):
    """The database of advisories does not answer, or its answer violates the protocol."""


@dataclass(frozen=True)
class Allowed:
    """An entry of requirements/audit.toml.

    Attributes:
        package: the name of a Python package, or `group:artifact`.
        ids: ids of advisories about this package; one of the ids of an advisory is enough.
        reason: why our use of the package is not exposed, or what protects it.
        reviewed: the day on which a developer reviewed the entry. Its key in the file is `date`.
        expires: the first day on which the entry no longer allows its advisories.
    """

    package: str
    ids: frozenset[str]
    reason: str
    reviewed: date
    expires: date


@dataclass(frozen=True)
class Advisory:
    """An advisory about the version of a package.

    Attributes:
        package: the package.
        ids: the ids of the advisory in all databases; the first is OSV's.
        summary: one line; empty if the database has none.
        severity: a word such as HIGH, or empty.
        fixed_in: the versions of the package that correct the vulnerability.
    """

    package: Package
    ids: tuple[str, ...]
    summary: str
    severity: str
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        names = " ".join(filter(None, (", ".join(self.ids), self.severity)))
        fixed = f"corrected in {', '.join(self.fixed_in)}" if self.fixed_in else "no release corrects it"
        return f"{self.package.name} {self.package.version}: {names}: {self.summary or 'no summary'}; {fixed}"


def read_allowed(path: Path) -> list[Allowed]:
    """The entries of the file of allowed advisories.

    Raises:
        SetupError: the file is not TOML, or an entry lacks a key or has a wrong key or value.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
    if document.keys() - {"allowed"} or not isinstance(document.get("allowed", []), list):
        raise SetupError(
            f"{path} has the keys {sorted(document)}: it may contain only tables with the heading [[allowed]]"
        )
    return [_entry(entry, f"{path}, entry {at}") for at, entry in enumerate(document.get("allowed", []), 1)]


def _entry(entry: Mapping[str, Any], place: str) -> Allowed:
    kinds = {"package": str, "ids": list, "reason": str, "date": date, "expires": date}
    if entry.keys() != kinds.keys():
        raise SetupError(
            f"{place} has the keys {sorted(entry)}: an entry must have exactly the keys {', '.join(kinds)}"
        )
    for key, kind in kinds.items():
        if type(entry[key]) is not kind or not entry[key]:  # not isinstance: a datetime is also a date
            raise SetupError(
                f"{place}: {key} is {entry[key]!r}: it must be a {kind.__name__} that is not empty"
            )
    if not all(isinstance(name, str) for name in entry["ids"]):
        raise SetupError(f"{place}: ids is {entry['ids']}: it must be a list of strings such as 'CVE-2024-1'")
    if not timedelta() < entry["expires"] - entry["date"] <= _LONGEST:
        raise SetupError(
            f"{place}: expires is {entry['expires']}: it must be later than date ({entry['date']}), "
            "and at most a year later"
        )
    return Allowed(
        entry["package"], frozenset(entry["ids"]), entry["reason"], entry["date"], entry["expires"]
    )


def advisories_of(packages: Sequence[Package], server: str = SERVER) -> list[Advisory]:
    """The advisories about these versions of packages.

    Raises:
        DatabaseError: the database does not answer, or its answer violates the protocol.
    """
    ids = _query(packages, server)
    with ThreadPoolExecutor(8) as pool:
        names = sorted({name for of_package in ids for name in of_package})
        records = dict(zip(names, pool.map(lambda name: _record(name, server), names), strict=True))
    advisories = []
    for package, of_package in zip(packages, ids, strict=True):
        advisories += _merged(package, [records[name] for name in of_package])
    return sorted(advisories, key=lambda advisory: (advisory.package.name, advisory.ids))


def _query(packages: Sequence[Package], server: str) -> list[list[str]]:
    """The ids of the advisories about each package. A request asks about up to `_QUERIES` packages."""
    ids: list[list[str]] = [[] for _ in packages]
    waiting: list[tuple[int, str | None]] = [(place, None) for place in range(len(packages))]
    while waiting:
        asked, waiting = waiting[:_QUERIES], waiting[_QUERIES:]
        queries = [_question(packages[place], page) for place, page in asked]
        answer = _ask(f"{server}/v1/querybatch", {"queries": queries})
        results = answer.get("results")
        if not isinstance(results, list) or len(results) != len(asked):
            raise DatabaseError(
                f"{server} did not answer with a list of {len(asked)} results: it is not an OSV database"
            )
        for (place, _), result in zip(asked, results, strict=True):
            ids[place] += [entry["id"] for entry in result.get("vulns", [])]
            if page := result.get("next_page_token"):
                waiting.append((place, page))
    return ids


def _question(package: Package, page: str | None) -> dict[str, Any]:
    question: dict[str, Any] = {
        "package": {"name": package.name, "ecosystem": package.ecosystem},
        "version": package.version,
    }
    return question | ({"page_token": page} if page else {})


def _record(name: str, server: str) -> dict[str, Any]:
    record = _ask(f"{server}/v1/vulns/{name}")
    if record.get("id") != name:
        raise DatabaseError(f"{server} did not answer with the advisory {name}: it is not an OSV database")
    return record


def _ask(address: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            document = json.load(answer)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DatabaseError(f"{address} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise DatabaseError(f"{address} did not answer with a JSON object: it is not an OSV database")
    return document


def _merged(package: Package, records: Iterable[Mapping[str, Any]]) -> list[Advisory]:
    """Advisories about a package. Records of several databases about one vulnerability are one advisory."""
    groups: list[tuple[set[str], list[Mapping[str, Any]]]] = []
    for record in records:
        if record.get("withdrawn"):
            continue
        names, members = {record["id"], *(record.get("aliases") or [])}, [record]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names, members = names | group[0], group[1] + members
        groups.append((names, members))
    return [_advisory(package, names, members) for names, members in groups]


def _advisory(package: Package, names: set[str], records: Sequence[Mapping[str, Any]]) -> Advisory:
    first = min(records, key=lambda record: (not record.get("summary"), record["id"]))
    severities = ((record.get("database_specific") or {}).get("severity") for record in records)
    fixed = {
        event["fixed"]
        for record in records
        for affected in record.get("affected") or []
        if affected.get("package", {}).get("name", "").lower() == package.name.lower()
        for versions in affected.get("ranges", [])
        if versions.get("type") != "GIT"
        for event in versions.get("events", [])
        if "fixed" in event
    }
    return Advisory(
        package,
        (first["id"], *sorted(names - {first["id"]})),
        first.get("summary", ""),
        next((severity for severity in severities if isinstance(severity, str)), ""),
        tuple(sorted(fixed)),
    )


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit: advisories, and entries of the file of allowed advisories.

    Attributes:
        refused: advisories that no entry allows.
        expired: entries that have expired.
        accepted: advisories that an entry allows.
        unused: entries for which there is no advisory.
    """

    refused: tuple[Advisory, ...]
    expired: tuple[Allowed, ...]
    accepted: tuple[Advisory, ...]
    unused: tuple[Allowed, ...]


def judge(advisories: Sequence[Advisory], allowed: Sequence[Allowed], today: date) -> AuditResult:
    """Decides which advisories the entries in `allowed` allow. An expired entry allows no advisory."""
    accepted, used = [], set()
    for advisory in advisories:
        for entry in allowed:
            if entry.package == advisory.package.name and not entry.ids.isdisjoint(advisory.ids):
                used.add(entry)
                if today < entry.expires and advisory not in accepted:
                    accepted.append(advisory)
    return AuditResult(
        tuple(advisory for advisory in advisories if advisory not in accepted),
        tuple(entry for entry in allowed if today >= entry.expires),
        tuple(accepted),
        tuple(entry for entry in allowed if entry not in used),
    )


def shown(result: AuditResult, packages: int, *, in_full: bool = False) -> str:
    """The result of an audit as text for a terminal."""
    lines = [f"refused: {advisory}" for advisory in result.refused]
    if in_full:
        lines += [f"allowed: {advisory}" for advisory in result.accepted]
    lines += [
        f"expired on {entry.expires}: {entry.package} {', '.join(sorted(entry.ids))}: {entry.reason}"
        for entry in result.expired
    ]
    lines += [
        f"not needed: {entry.package} {', '.join(sorted(entry.ids))}: delete this entry of {ALLOWED.name}"
        for entry in result.unused
    ]
    lines.append(
        f"{packages} packages and jars, {len(result.refused) + len(result.accepted)} advisories, "
        f"{len(result.accepted)} of them allowed"
    )
    if result.refused:
        lines.append(
            "  use a release that corrects it (make lock ARGS='--upgrade-package NAME', "
            f"requirements/jars.lock), or allow it in requirements/{ALLOWED.name} and say why our use is not "
            "exposed"
        )
    if result.expired:
        lines.append("  look at expired entries again: correct their reason and dates, or delete them")
    return "\n".join(lines)


def packages_to_audit() -> list[Package]:
    """The Python packages and jars of the lock files, and the jars that pyspark contains."""
    wanted = [*locked_packages(), *locked_jars(), *spark_jars(site_packages(VENV))]
    return list({(package.name, package.version): package for package in wanted}.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Audits the lock files, prints the result, and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m setup.audit",
        description=__doc__.splitlines()[0],
        epilog="Exit codes: 0 no problem, 1 an advisory that is not allowed or an expired entry, 2 wrong "
        "entries, 4 the database cannot be reached.",
    )
    parser.add_argument(
        "--server", default=SERVER, metavar="URL", help=f"the OSV database to ask (default: {SERVER})"
    )
    parser.add_argument("--full", action="store_true", help="print the allowed advisories too")
    options = parser.parse_args(arguments)
    try:
        allowed = read_allowed(ALLOWED)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT_CONFIGURATION
    packages = packages_to_audit()
    try:
        advisories = advisories_of(packages, options.server.rstrip("/"))
    except DatabaseError as error:
        print(
            f"error: {error}\n  nothing was audited; run `make audit` on a machine that reaches "
            f"{options.server}, or name a mirror: make audit ARGS='--server URL'",
            file=sys.stderr,
        )
        return _EXIT_INFRASTRUCTURE
    result = judge(advisories, allowed, date.today())
    say(shown(result, len(packages), in_full=options.full))
    return _EXIT_PROBLEM if result.refused or result.expired else 0


if __name__ == "__main__":
    sys.exit(main())
