"""docs/operations.md against the code.

Every error, exit code, limit, warning and alert stands in the page, and alerts name real metrics.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf import errors
from conf.types import Drift, Gate, Quality, Stop, Strict, Watch
from jobs.chain.launchers import StageError, StoppedError
from reporting.monitoring.prometheus import METRICS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
SOURCES = sorted(
    path
    for room in (
        "conf",
        "storage",
        "metrics",
        "spark",
        "device",
        "etl",
        "training",
        "scoring",
        "reporting",
        "jobs",
    )
    for path in (ROOT / room).rglob("*.py")
)
RULES: list[Mapping[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "conf/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
_DURATION = re.compile(r"\d+(ms|[smhdwy])")
_WORD = re.compile(r"\b[a-z_][a-z0-9_]*\b")
_PROMQL = {"and", "or", "unless", "on", "by", "sum", "max", "time", "avg_over_time", "max_over_time"}


# Errors that their callers always catch: no user sees them.
CAUGHT = {
    "DamagedPageError",
    "NoTextError",
    "RefusedError",
    "StateMismatchError",
    "Unavailable",
    "WrongPageError",
    "_DisconnectedError",
    "_InexactError",
    "_OtherConnectionError",
}


def _errors() -> list[type[errors.NightrankError]]:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    return [kind for kind in classes if issubclass(kind, errors.NightrankError)] + [StageError, StoppedError]


@pytest.mark.parametrize("error", _errors(), ids=lambda error: error.__name__)
def test_every_error_is_explained(error: type[errors.NightrankError]) -> None:
    assert f"`{error.__name__}`" in PAGE


def test_no_other_module_makes_errors_of_its_own() -> None:
    known = {kind.__name__ for kind in _errors()} | CAUGHT
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                assert node.name in known, f"{path}: {node.name} is not in docs/operations.md"


def test_every_kind_of_airflows_alerts_has_its_row() -> None:
    tree = ast.parse((ROOT / "airflow_dags/alerts.py").read_text(encoding="utf-8"))
    [kinds] = [
        ast.literal_eval(node.value.slice)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "Kind"
        and isinstance(node.value, ast.Subscript)
    ]
    table = PAGE.split("### Alerts of Airflow")[1].split("## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(kinds)


def test_every_exit_code_has_its_row() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert codes == {0, 1, 2, 3, 4}
    table = PAGE.split("## Exit codes")[1].split("## ")[0]
    for code in codes:
        assert re.search(rf"^\| {code} \|", table, re.MULTILINE), code
    for kind in (errors.ConfigError, errors.DataError, errors.InfrastructureError):
        assert f"| {kind.exit_code} | `{kind.__name__}` |" in table


def _limits() -> Iterator[tuple[str, Any]]:
    sections: tuple[tuple[str, type[Strict]], ...] = (
        ("quality", Quality),
        ("score.stop", Stop),
        ("gate", Gate),
        ("gate.drift", Drift),
    )
    for prefix, section in sections:
        for name, field in section.model_fields.items():
            if name != "drift":
                yield f"{prefix}.{name}", field.default


@pytest.mark.parametrize("limit, default", list(_limits()))
def test_every_limit_stands_with_its_default(limit: str, default: Any) -> None:
    table = PAGE.split("## Limits")[1].split("## Run")[0]
    written = f"`{limit}`" if default is None or default == [] else f"`{limit}` ({default})"
    assert written in table
    if default is None:
        assert f"`{limit}` (" not in table


def test_every_setting_of_watch_is_explained() -> None:
    for name in Watch.model_fields:
        assert f"`watch.{name}`" in PAGE


def _literal(node: ast.expr) -> str:
    """The text of a message as far as it stands in the source, … for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(\.\d+)?[a-z]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return "…"


def _logged_messages() -> Iterator[tuple[Path, str]]:
    """(file, first literal text that is long enough) of every warning, those of the observer included."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            warns = isinstance(node.func, ast.Attribute) and node.func.attr == "warning"
            harmless = isinstance(node.func, ast.Name) and node.func.id == "_harmless"
            if warns or harmless:
                pieces = [piece.strip() for piece in re.split("[…;:,(]", _literal(node.args[0]))]
                telling = next((piece for piece in pieces if len(piece) >= 12), max(pieces, key=len))
                if telling:
                    yield path, telling


def test_every_warning_is_explained() -> None:
    table = PAGE.split("## Warnings")[1].split("## Limits")[0]
    messages = list(_logged_messages())
    assert len(messages) > 15
    missing = [(str(path), text) for path, text in messages if text not in table]
    assert not missing


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_a_rule_of_prometheus_over_metrics_of_ours(rule: Mapping[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", rule["alert"])
    assert rule["labels"]["severity"] in ("page", "ticket")
    if "for" in rule:
        assert _DURATION.fullmatch(rule["for"])
    expression = rule["expr"]
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)
    outside = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b\d\S*", " ", expression)
    words = set(_WORD.findall(outside)) - _PROMQL - {"config", "nightrank_job"}
    assert words, "an alert looks at a metric"
    assert words <= set(METRICS), words - set(METRICS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_has_its_paragraph_where_it_says(rule: Mapping[str, Any]) -> None:
    assert f"\n### {rule['alert']}\n" in PAGE
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
    assert rule["annotations"]["summary"]


def test_the_page_explains_no_alert_that_there_is_not() -> None:
    assert re.findall(r"^### (Nightrank\w+)$", PAGE, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_alerts_of_a_job_or_fact_name_one_that_exists() -> None:
    jobs = {path.stem for path in (ROOT / "jobs").glob("*.py")}
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    for rule in RULES:
        for named in re.findall(r'job=~?"([^"]*)"', rule["expr"]):
            assert set(named.split("|")) <= jobs
        for fact in re.findall(r'fact="([^"]*)"', rule["expr"]):
            assert f'"{fact}"' in text


def test_files_and_pages_that_the_page_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).resolve().exists(), target
    for job in re.findall(r"jobs/(\w+\.py)", PAGE):
        assert (ROOT / "jobs" / job).exists(), job
