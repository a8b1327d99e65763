"""The documentation site and the generated page of jobs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import nightrank
from setup import docs_site, job_pages
from setup.console import SetupError

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_the_page_of_jobs_holds_the_help_of_each_job() -> None:
    """The golden help texts are those of the jobs, see tests/contract/test_help.py.

    After a change of them, `make docs` updates the page.
    """
    golden = ROOT / "tests/contract/golden"
    helps = {path.stem: path.read_text(encoding="utf-8") for path in golden.glob("*.txt")}
    assert sorted(helps) == [job.stem for job in job_pages.job_files()]
    helps["doctor"] = job_pages.help_text("setup.doctor")
    for path, text in job_pages.generated_files(helps).items():
        assert (ROOT / path).read_text(encoding="utf-8") == text


@pytest.mark.processes
def test_the_help_of_a_job_is_that_of_its_file() -> None:
    golden = (ROOT / "tests/contract/golden/migrate.txt").read_text(encoding="utf-8")
    assert job_pages.help_text(ROOT / "jobs/migrate.py") == golden


def checkout(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_linked_files_are_staged_and_links_to_folders_become_text(tmp_path: Path) -> None:
    text = "[a config](../conf/a.yaml), [models](../conf/), [home](../README.md#top), [site](https://example.org)\n"
    root = checkout(tmp_path / "r", {"README.md": "# Home\n", "docs/a.md": text, "conf/a.yaml": "a: 1\n"})
    docs_site.stage(root, tmp_path / "staged")
    assert (tmp_path / "staged/conf/a.yaml").read_text() == "a: 1\n"
    assert (tmp_path / "staged/docs/a.md").read_text() == text.replace("[models](../conf/)", "models")
    assert (tmp_path / "staged/README.md").is_file()


@pytest.mark.parametrize("target", ["missing.md", "../conf/missing.yaml", "../../outside.md"])
def test_a_broken_link_ends_the_build(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside.md").write_text("outside\n")
    root = checkout(tmp_path / "r", {"docs/a.md": f"[x]({target})\n"})
    with pytest.raises(SetupError, match=r"docs/a\.md links to .*, which does not exist"):
        docs_site.stage(root, tmp_path / "staged")


@pytest.mark.processes
def test_the_site_is_built_from_this_repository(tmp_path: Path) -> None:
    """MkDocs runs with --strict: a page outside the navigation or a missing anchor is an error."""
    site = docs_site.build_site(tmp_path)
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {"index.html", "ARCHITECTURE.html", "docs/operations.html", "docs/configuration.html"} <= pages
    decisions = {
        f"{path.stem}.html" for path in (ROOT / "docs/decisions").glob("*.md") if path.stem != "README"
    }
    assert len(decisions) >= 25
    assert {f"docs/decisions/{name}" for name in decisions} <= pages
    assert_search_works_offline(site)
    assert_the_package_is_described(site)


def assert_the_package_is_described(site: Path) -> None:
    """docs/api.md has each public name with the first sentence of its docstring."""
    page = (site / "docs/api.html").read_text(encoding="utf-8")
    described = set(re.findall(r'<h2 id="nightrank\.(\w+)"', page))
    # An alias of types and the errors are described where they are used.
    missing = set(nightrank.__all__) - described - {"Frame", "__version__", "metrics"}
    assert all(name.endswith("Error") for name in missing), missing
    assert "The tables, workflows and models of a lake." in page
    assert 'id="nightrank.metrics.auc"' in page


def assert_search_works_offline(site: Path) -> None:
    """A page that is opened as a file may read scripts beside it, but nothing else and no other host."""
    index = json.loads((site / "search/search_index.js").read_text().removeprefix("var __index = "))
    assert {"docs/operations.html", "ARCHITECTURE.html"} <= {entry["location"] for entry in index["docs"]}
    for page in (site / "index.html", site / "docs/decisions/index.html"):
        loaded = _Loaded()
        loaded.feed(page.read_text())
        assert any(path.endswith("iframe-worker.js") for path in loaded.paths)
        assert len(loaded.paths) >= 4
        for path in loaded.paths:
            assert (page.parent / path).is_file(), path


class _Loaded(HTMLParser):
    """The paths of scripts, style sheets and pictures that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img") and (source := values.get("src")):
            self.paths.append(source)
        if tag == "link" and values.get("rel") == "stylesheet" and (sheet := values.get("href")):
            self.paths.append(sheet)
