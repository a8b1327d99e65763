"""The union of the settings of all architectures is complete and described, and covers the shipped files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from conf.types import ModelConfig
from training.settings import complete, known_architectures
from training.settings.check_settings import model_sections, models_adapter

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "conf/models").glob("*.yaml"))


def test_the_union_has_every_architecture() -> None:
    assert sorted(model_sections()) == known_architectures()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_union_accepts_the_shipped_files(path: Path) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    section = models_adapter().validate_python(values)
    config = ModelConfig.model_validate(values)
    assert type(section) is model_sections()[config.architecture]
    assert ModelConfig.model_validate(section.model_dump()) == complete(config)


@pytest.mark.parametrize(
    "values", [{"architecture": "dlrm", "deep": [8]}, {"architecture": "other"}, {"embedding_dim": 8}]
)
def test_the_union_refuses_keys_of_another_architecture(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        models_adapter().validate_python(values)


def test_every_setting_is_described() -> None:
    bare = [
        f"{architecture}.{name}"
        for architecture, section in model_sections().items()
        for name, field in section.model_fields.items()
        if not field.description
    ]
    assert bare == []
