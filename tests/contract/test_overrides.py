"""`--set`: text where a key holds text, YAML elsewhere; and the commands in comments of configurations."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from conf.load import load_config, read_config_file, read_models
from conf.types import Config

CRITEO, GENERATED = "conf/datasets/criteo.yaml", "conf/datasets/generated.yaml"


def _get(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


@pytest.mark.parametrize(
    "override, value",
    [
        ("log.path={data}/day={date}/*.gz", "{data}/day={date}/*.gz"),
        ("log.path={data}", "{data}"),
        ("log.path=*.tsv", "*.tsv"),
        ("log.path='{data}/x'", "{data}/x"),
        ('log.path="{data}/x"', "{data}/x"),
        ("data=/a b#c: d", "/a b#c: d"),
        ("data=@x", "@x"),
        ("data=[x", "[x"),
        ("data=null", "null"),
        ("name=2024", "2024"),
        ("name=yes", "yes"),
        ("log.separator=,", ","),
        ("log.separator=|", "|"),
        ("log.separator=~", "~"),
        ('log.separator="\\t"', "\t"),
        ("watch.push_gateway=http://host:9091", "http://host:9091"),
        ("watch.push_gateway=null", None),
        ("watch.textfile_folder=123", "123"),
        ("log.label.positive_at_least=0.5", 0.5),
        ("log.label.positive_at_least=null", None),
        ("split.by=leave_last_out", "leave_last_out"),
        ("train.compile=true", True),
        ("train.learning_rate=1e-3", 0.001),
        ("score.context.I11=5", 5),
        ("score.context.C21=abc", "abc"),
        ("score.context.C21='5'", "5"),
        ("candidates.splits=[train, validation]", ["train", "validation"]),
    ],
)
def test_the_type_of_the_key_says_how_a_value_is_read(override: str, value: Any) -> None:
    config = (
        CRITEO if override.startswith("log.path") else GENERATED
    )  # a split by day needs {date} in log.path
    assert _get(load_config(config, [override]), override.partition("=")[0]) == value


@pytest.mark.parametrize(
    "override, problem",
    [
        ("name=../../x", r"name='\.\./\.\./x': it is the name of a folder in the lake"),
        ("lake=http://a", r"lake='http://a': http:// is not supported"),
        ("lake=s3a://", r"lake='s3a://': it names no bucket: write s3a://bucket/folder"),
        ("output.grace_hours=1e300", r"grace_hours=.1e300.: Input should be less than or equal to 876600"),
        ("a" + ".a" * 30_000 + "=1", r"the key has more than 50 parts"),
        ("train.epochs={data}/x", r"the value is not YAML"),
        ("log.path='{data}", r"the value is not YAML"),
        ("log..path=x", r"is not of the form a\.b=value"),
        (".=x", r"is not of the form a\.b=value"),
        ("log.pth={data}", r"unknown key log\.pth=\{'data': None\}"),
        ("generate.first_date=2026-13-01", r"generate\.first_date='2026-13-01': month must be in 1\.\.12"),
        ("train.seed=2026-13-01", r"the value is not YAML: month must be in 1\.\.12"),
        ("train.seed=0x_", r"the value is not YAML"),
        ("extends=other.yaml", r"unknown key extends"),
        ("train.num_ranks.x=3", r"num_ranks"),
        ("log.columns.0.name=x", r"columns is \[.*\], not a section"),
        ("train.seed=" + "[" * 3000, r"nested too deeply"),
        ("log.separator=x\x1b", r"log\.separator='x\\x1b'"),
    ],
)
def test_a_bad_override_is_named(override: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(GENERATED, [override])
    assert "\x1b" not in str(caught.value)


def documented_overrides() -> list[tuple[str, list[str]]]:
    """(file, `--set` values of one line) of every comment in a shipped configuration that has such values."""
    leaves = []
    for path in sorted(Path("conf").rglob("*.yaml")):
        for line in path.read_text(encoding="utf-8").splitlines():
            text = line.partition("#")[2]
            if "--set " in text:
                # A command ends where the sentence goes on.
                words = shlex.split(re.sub(r"[,;)]( |$).*", "", text[text.index("--set ") :]))
                leaves.append(
                    (
                        str(path),
                        [after for word, after in pairwise(words) if word == "--set"],
                    )
                )
    return leaves


def test_the_shipped_configurations_document_some() -> None:
    documented = dict(documented_overrides())
    assert documented[CRITEO] == ["log.path={data}/day={date}/*.gz", "split.by=day"]


@pytest.mark.parametrize("path, overrides", documented_overrides())
def test_what_a_shipped_configuration_documents_is_accepted(path: str, overrides: list[str]) -> None:
    base = path if "datasets" in path else CRITEO
    config = load_config(base, overrides)
    values = read_config_file(Path(base))
    read_models(values, Path(base))
    assert config != Config.model_validate(values)


def test_the_terabyte_log_by_day_is_read_as_documented() -> None:
    config = load_config(CRITEO, ["log.path={data}/day={date}/*.gz", "split.by=day"])
    assert config.log.by_day
    assert (config.log.path, config.split.by) == ("{data}/day={date}/*.gz", "day")
