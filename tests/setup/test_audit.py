"""The audit against an OSV database on loopback, which answers with records of the real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from local_airflow.home import free_port
from setup import audit
from setup.audit import Advisory, Allowed, DatabaseError, advisories_of, judge, read_allowed, shown
from setup.console import SetupError
from setup.sbom import Package

pytestmark = pytest.mark.processes

HERE = Path(__file__).parent
# Records of the databases of GitHub and PyPA in OSV's format, without long texts, references and most versions.
RECORDS: dict[str, dict[str, Any]] = {
    record["id"]: record for record in json.loads((HERE / "osv_records.json").read_text())
}
# What the OSV format and its API require of the keys that we read.
SCHEMA = json.loads((HERE / "osv_schema.json").read_text())
OLD_ARROW = Package("PyPI", "pyarrow", "14.0.0")
OLD_DRIVER = Package("Maven", "org.postgresql:postgresql", "42.7.1")
TODAY = date(2026, 11, 29)


class Database:
    """The two calls of OSV's API that the audit uses.

    Attributes:
        page: how many advisories a result has at most; the rest are on further pages.
        asked: the bodies of the queries.
        status: the HTTP status of all answers.
    """

    def __init__(self) -> None:
        self.page = 100
        self.asked: list[dict[str, Any]] = []
        self.status = 200

    def query(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        return {"results": [self._result(query) for query in body["queries"]]}

    def _result(self, query: dict[str, Any]) -> dict[str, Any]:
        names = sorted(name for name, record in RECORDS.items() if _concerns(record, query))
        start = int(query.get("page_token", 0))
        result: dict[str, Any] = {}
        if advisories := names[start : start + self.page]:
            result["vulns"] = [{"id": name, "modified": RECORDS[name]["modified"]} for name in advisories]
        if names[start + self.page :]:
            result["next_page_token"] = str(start + self.page)
        return result


def _concerns(record: dict[str, Any], query: dict[str, Any]) -> bool:
    return any(
        {key: affected["package"][key] for key in ("name", "ecosystem")} == query["package"]
        and query["version"] in affected.get("versions", [])
        for affected in record["affected"]
    )


@contextmanager
def served(database: Database) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(RECORDS.get(self.path.removeprefix("/v1/vulns/"), {}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(database.query(body) if self.path == "/v1/querybatch" else {})

        def _answer(self, document: dict[str, Any]) -> None:
            self.send_response(database.status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def server(database: Database) -> Iterator[str]:
    with served(database) as address:
        yield address


def problems(document: object, definition: str) -> list[str]:
    schema = {**SCHEMA, "$ref": f"#/$defs/{definition}"}
    return [error.message for error in Draft202012Validator(schema).iter_errors(document)]


def test_the_records_and_the_answers_follow_the_format_of_osv(database: Database) -> None:
    for record in RECORDS.values():
        assert problems(record, "record") == []
    assert problems({**RECORDS["PYSEC-2023-238"], "aliases": "CVE-2023-47248"}, "record") != []
    database.page = 1
    question = {"queries": [audit._question(package, None) for package in (OLD_ARROW, OLD_DRIVER)]}
    assert problems(question, "query") == []
    answer = database.query(question)
    assert problems(answer, "answer") == []
    assert [len(result["vulns"]) for result in answer["results"]] == [1, 1]


def test_advisories_of_packages_and_of_jars_are_found(database: Database, server: str) -> None:
    fine = Package("PyPI", "pyarrow", "24.0.0")
    arrow, driver = advisories_of([fine, OLD_DRIVER, OLD_ARROW], server)[::-1]
    assert (arrow.package, driver.package) == (OLD_ARROW, OLD_DRIVER)
    assert "CVE-2023-47248" in arrow.ids
    assert {"GHSA-5wvp-7f3h-6wmm", "PYSEC-2023-238"} <= set(arrow.ids)  # two records, one vulnerability
    assert "14.0.1" in arrow.fixed_in
    assert "CVE-2024-1597" in driver.ids
    assert driver.severity == "CRITICAL"
    assert len(database.asked) == 1
    (query,) = [query for query in database.asked[0]["queries"] if query["version"] == "42.7.1"]
    assert query["package"] == {"name": "org.postgresql:postgresql", "ecosystem": "Maven"}


def test_all_pages_of_an_answer_are_read(database: Database, server: str) -> None:
    whole = advisories_of([OLD_ARROW, OLD_DRIVER], server)
    database.page = 1
    assert advisories_of([OLD_ARROW, OLD_DRIVER], server) == whole
    assert len(database.asked) > 2


def test_many_packages_are_divided_into_requests(
    database: Database, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_QUERIES", 2)
    packages = [Package("PyPI", f"package-{number}", "1") for number in range(4)]
    assert [advisory.package for advisory in advisories_of([*packages, OLD_DRIVER], server)] == [OLD_DRIVER]
    assert [len(body["queries"]) for body in database.asked] == [2, 2, 1]


def test_a_withdrawn_record_counts_no_more(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GHSA-5wvp-7f3h-6wmm", "PYSEC-2023-238"):
        monkeypatch.setitem(RECORDS, name, {**RECORDS[name], "withdrawn": "2026-01-01T00:00:00Z"})
    assert advisories_of([OLD_ARROW], server) == []


ADVISORY = Advisory(OLD_ARROW, ("GHSA-1", "CVE-1"), "too open", "HIGH", ("15",))


def entry(package: str = "pyarrow", ids: str = "CVE-1", expires: date = date(2026, 12, 1)) -> Allowed:
    return Allowed(package, frozenset({ids}), "we read only our files", date(2026, 6, 1), expires)


def test_an_entry_allows_an_advisory_of_its_package_until_it_expires() -> None:
    assert judge([ADVISORY], [entry()], TODAY).accepted == (ADVISORY,)
    assert judge([ADVISORY], [entry()], TODAY).refused == ()
    for other in (entry("numpy"), entry(ids="CVE-2")):
        result = judge([ADVISORY], [other], TODAY)
        assert (result.refused, result.accepted, result.unused) == ((ADVISORY,), (), (other,))
    late = entry(expires=TODAY)
    result = judge([ADVISORY], [late], TODAY)
    assert (result.refused, result.expired) == ((ADVISORY,), (late,))
    assert judge([], [late], TODAY).expired == (late,)


def test_the_text_says_what_to_do() -> None:
    text = shown(judge([ADVISORY], [entry("numpy", expires=TODAY)], TODAY), 7)
    assert "refused: pyarrow 14.0.0: GHSA-1, CVE-1 HIGH: too open; corrected in 15" in text
    assert "expired on 2026-11-29: numpy CVE-1: we read only our files" in text
    assert "not needed: numpy CVE-1" in text
    assert "7 packages and jars, 1 advisories, 0 of them allowed" in text
    assert "requirements/audit.toml and say why our use is not exposed" in text
    full = shown(judge([ADVISORY], [entry()], TODAY), 7, in_full=True)
    assert full.startswith("allowed: pyarrow 14.0.0")


def main_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: str, allowed: str = "") -> int:
    (tmp_path / "audit.toml").write_text(allowed)
    monkeypatch.setattr(audit, "ALLOWED", tmp_path / "audit.toml")
    monkeypatch.setattr(audit, "packages_to_audit", lambda: [OLD_ARROW, OLD_DRIVER])
    return audit.main(["--server", server])


ENTRY = """
[[allowed]]
package = "{package}"
ids = ["{id}"]
reason = "it is not used"
date = {date}
expires = {expires}
"""


def test_exit_codes(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day, later = date.today(), date.fromordinal(date.today().toordinal() + 30)
    both = ENTRY.format(package="pyarrow", id="CVE-2023-47248", date=day, expires=later)
    assert main_with(monkeypatch, tmp_path, server, both) == 1
    printed = capsys.readouterr().out
    assert "CVE-2024-1597" in printed
    assert "CVE-2023-47248" not in printed
    names = [advisory.ids[0] for advisory in advisories_of([OLD_DRIVER], server)]
    for name in names:
        both += ENTRY.format(package="org.postgresql:postgresql", id=name, date=day, expires=later)
    assert main_with(monkeypatch, tmp_path, server, both) == 0
    old = ENTRY.format(package="numpy", id="CVE-1", date="2025-01-01", expires="2025-06-01")
    assert main_with(monkeypatch, tmp_path, server, both + old) == 1
    assert "expired on 2025-06-01: numpy" in capsys.readouterr().out


def test_without_a_network_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert main_with(monkeypatch, tmp_path, nobody) == 4
    message = capsys.readouterr().err
    assert f"{nobody}/v1/querybatch cannot be read" in message
    assert "nothing was audited; run `make audit` on a machine that reaches" in message


def test_a_server_that_is_no_database_is_reported(database: Database, server: str) -> None:
    with pytest.raises(DatabaseError, match="it is not an OSV database"):
        advisories_of([OLD_ARROW], f"{server}/other")
    database.status = 503
    with pytest.raises(DatabaseError, match="503"):
        advisories_of([OLD_ARROW], server)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[[allowed]\n", "cannot be read"),
        ("[allow]\n", r"has the keys \['allow'\]"),
        ('[[allowed]]\npackage = "a"\n', "entry 1 has the keys"),
        (ENTRY.format(package="", id="x", date="2026-01-01", expires="2026-02-01"), "package is ''"),
        (ENTRY.format(package="a", id="x", date='"2026-01-01"', expires="2026-02-01"), "must be a date"),
        (
            ENTRY.format(package="a", id="x", date="2026-01-01", expires="2026-01-01"),
            "must be later than date",
        ),
        (ENTRY.format(package="a", id="x", date="2026-01-01", expires="2027-02-01"), "at most a year later"),
    ],
)
def test_a_wrong_entry_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "audit.toml").write_text(text)
    with pytest.raises(SetupError, match=message):
        read_allowed(tmp_path / "audit.toml")


def test_a_wrong_file_is_a_configuration_error(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_with(monkeypatch, tmp_path, server, "[allow]\n") == 2
    assert "only tables with the heading [[allowed]]" in capsys.readouterr().err


def test_every_entry_of_the_checkout_is_about_a_package_of_the_lock_files() -> None:
    names = {package.name for package in audit.packages_to_audit()}
    assert {"torch", "org.postgresql:postgresql", "org.apache.spark:spark-core_2.12"} <= names
    for allowed in read_allowed(audit.ALLOWED):
        assert allowed.package in names, allowed
        assert len(allowed.reason.split()) >= 5, allowed
