"""Builds the documentation site from the repository's Markdown: `python -m setup.docs_site`.

`make docs` runs this module. MkDocs reads one folder, so the documents are copied to a folder below build/.
The documents keep their relative paths, so that links between them remain valid. If a link leads to a file
that is not a document, such as a configuration, that file is copied too. A link to a folder is replaced by
the text of the link.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from setup.console import SetupError, fail, run, say
from setup.locked_environment import locked_environment

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/docs.txt"
CONFIG = ROOT / "docs/mkdocs.yml"
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/**/*.md",
    "benchmarks/*.md",
)
SCRIPTS = Path("docs/scripts")
BUILD = ROOT / "build/docs"

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def documents(root: Path) -> list[Path]:
    """Every document of the site, relative to the root, sorted."""
    return sorted({path.relative_to(root) for pattern in DOCUMENTS for path in root.glob(pattern)})


def stage(root: Path, folder: Path) -> None:
    """Copies the documents, and the files that they link to, into an empty folder.

    Raises:
        SetupError: a document links to a file that does not exist or is outside of the repository.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for document in documents(root):
        target = folder / document
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (root / document).read_text(encoding="utf-8")
        target.write_text(_with_staged_links(root, document, text, folder), encoding="utf-8")


def _with_staged_links(root: Path, document: Path, text: str, folder: Path) -> str:
    def staged(link: re.Match[str]) -> str:
        picture, title, target = link[1], link[2], link[3]
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = (root / document.parent / target).resolve()
        if not path.exists() or not path.is_relative_to(root.resolve()):
            raise SetupError(f"{document} links to {target}, which does not exist: correct the link")
        if path.is_dir():
            return title
        relative = path.relative_to(root.resolve())
        if path.suffix != ".md" and not (folder / relative).exists():
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / relative)
        return f"{picture}[{title}]({target}{link[4] or ''})"

    return _LINK.sub(staged, text)


def build_site(build: Path = BUILD) -> Path:
    """Builds the site of this repository below a folder and returns the site's folder.

    Raises:
        SetupError: the environment cannot be installed, a link is broken, or MkDocs reports a warning. A
            warning is, for example, a page outside of the navigation or an anchor that does not exist.
    """
    mkdocs = locked_environment("docs", LOCK, "import mkdocs, material, mkdocstrings") / "bin/mkdocs"
    stage(ROOT, build / "docs")
    shutil.copytree(ROOT / SCRIPTS, build / "docs" / SCRIPTS)
    settings = CONFIG.read_text(encoding="utf-8").replace("[CHECKOUT]", f"[{json.dumps(str(ROOT))}]")
    (build / "mkdocs.yml").write_text(settings, encoding="utf-8")
    quiet = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
    }  # hides an announcement that the theme prints in every build
    command: list[str | Path] = [
        mkdocs,
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        build / "mkdocs.yml",
    ]
    run([*command, "--site-dir", build / "site"], env=quiet)
    return build / "site"


def main() -> None:
    """Builds the site and prints its path."""
    say(f"the documentation site is ready: {build_site() / 'index.html'}")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(fail(error))
