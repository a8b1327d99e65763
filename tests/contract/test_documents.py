"""Documents against the code: commands can be pasted; options, keys, files and targets exist."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from conf.load import load_config, types_of
from conf.types import Config, ModelConfig
from jobs.command_line import job_parser
from training.settings import known_architectures, read_settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "docs/decisions/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # tells of keys that are gone
)
SECTIONS = "|".join(Config.model_fields)
JOB = re.compile(r"jobs/(\w+)\.py")


def commands() -> list[tuple[str, str]]:
    """(document, command) of every command line, indented or in a block; a final backslash continues it."""
    pairs = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line.startswith("    ")]
        inline = re.findall(r"`((?:python|spark-submit|make|\.venv)[^`]*)`", text)
        for line in (*lines, *inline):
            command = line.partition(" #")[0].strip()
            if re.match(r"(\$ ?|for .*do )?(\.?[\w/.]*python|spark-submit|make)\b", command):
                pairs.append((str(path.relative_to(ROOT)), command))
    return pairs


def parser_of(job: str) -> argparse.ArgumentParser:
    module = import_module(f"jobs.{job}")
    build_parser = getattr(module, "_parser", None)
    return build_parser() if build_parser else job_parser(job, "")


def words_of(command: str) -> list[str]:
    """The words behind the job's file; what stands in brackets is optional, and is there."""
    behind = JOB.split(command, maxsplit=1)[2]
    text = re.sub(r"[\[\]…]", " ", behind.partition(" || ")[0].partition(";")[0])
    return shlex.split(text)


def test_the_documents_hold_commands() -> None:
    assert len([command for _, command in commands() if JOB.search(command)]) > 25


@pytest.mark.parametrize("document, command", [pair for pair in commands() if JOB.search(pair[1])])
def test_a_documented_job_takes_these_options(document: str, command: str) -> None:
    job = JOB.findall(command)[0]
    assert (ROOT / f"jobs/{job}.py").is_file()
    words = words_of(command)
    known = parser_of(job)._option_string_actions
    assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in known] == []
    for profile in re.findall(r"--(?:properties-file|profile) (conf/\S+)", command):
        assert (ROOT / profile).is_file()
    overrides = [words[place + 1] for place, word in enumerate(words[:-1]) if word == "--set"]
    config = words[words.index("--config") + 1] if "--config" in words[:-1] else ""
    if config.startswith("conf/"):
        load_config(str(ROOT / config), overrides)
    else:
        assert [override for override in overrides if not exists(override.partition("=")[0])] == []


@pytest.mark.parametrize("document, command", [pair for pair in commands() if pair[1].startswith("make ")])
def test_a_documented_target_exists(document: str, command: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    target = command.split()[1]
    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), command


@pytest.mark.parametrize(
    "document, command",
    [pair for pair in commands() if re.search(r"python3?(\.\d+)? (-m )?[\w/.]+", pair[1])],
)
def test_a_documented_program_exists(document: str, command: str) -> None:
    named = re.findall(r"python(?:3(?:\.\d+)?)? (-m )?([\w/.]+)", command)
    for is_module, name in named:
        path = name.replace(".", "/") if is_module else name
        if path.split("/")[0] in ("jobs", "benchmarks", "training", "etl", "local_airflow", "setup"):
            candidates = [ROOT / path, ROOT / f"{path}.py", ROOT / f"{path}/__main__.py"]
            assert any(candidate.is_file() for candidate in candidates), command


def exists(key: str) -> bool:
    """Whether a configuration may have the key; of a model, one of the settings of some architecture."""
    if types_of(Config, key.split(".")):
        return True
    section, _, rest = key.partition(".")
    kinds = [type(read_settings(ModelConfig(architecture=name))) for name in known_architectures()]
    return section == "model" and any(types_of(kind, rest.split(".")) for kind in kinds)


def named_keys() -> list[tuple[str, str]]:
    """(document, key) of every dotted key of a section that a document names, and of every `--set` in it."""
    pairs: set[tuple[str, str]] = set()
    for path in DOCUMENTS:
        keys: set[str] = set()
        text = path.read_text(encoding="utf-8")
        spans = [span for span in re.findall(r"`([^`\n]+)`", text) if "…" not in span]
        for span in spans:
            keys |= set(re.findall(rf"(?<![\w./<{{-])((?:{SECTIONS})(?:\.[a-z_]+)+)(?![\w./(*-])", span))
        keys |= set(re.findall(r"--set ['\"]?([a-z_]+(?:\.\w+)*)=", text))
        pairs |= {(str(path.relative_to(ROOT)), key) for key in keys}
    pairs = {(document, key) for document, key in pairs if key != "a.b"}  # stands for any key
    file_suffixes = (".json", ".py", ".md", ".yaml", ".sqlite")
    return sorted((document, key) for document, key in pairs if not key.endswith(file_suffixes))


@pytest.mark.parametrize("document, key", named_keys())
def test_a_key_that_a_document_names_exists(document: str, key: str) -> None:
    assert exists(key)


def test_the_documents_name_keys() -> None:
    assert len(named_keys()) > 80


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    folders = (
        "conf|storage|metrics|spark|device|etl|training|scoring|reporting|jobs|setup|airflow_dags|local_airflow"
        "|benchmarks|tests|docs|requirements"
    )
    named = re.findall(rf"`((?:{folders})/[\w/.-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
