"""A new file of scoring/delivery/sinks is all that a sink of the checkout needs."""

from __future__ import annotations

import re

import jsonschema
import pytest

from conf.errors import ConfigError
from conf.plugins import SINK
from conf.types import Deliver
from jobs.reference import config_schema, configuration_page
from scoring.delivery.sinks import read_settings
from tests.conftest import ROOT
from tests.contract.test_config import SMALL
from tests.extensions.conftest import AddToCheckout


def test_one_file_adds_a_sink_to_the_checkout(add_to_checkout: AddToCheckout) -> None:
    before = jsonschema.Draft7Validator(config_schema())
    page = (ROOT / "docs/delivery.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    add_to_checkout(SINK, "parquet", text)
    sink = {"kind": "parquet", "name": "files", "path": "/srv/lists"}
    ((module, settings),) = read_settings(Deliver.model_validate({"sinks": [sink]}), {})
    assert (settings.path, callable(module.deliver)) == ("/srv/lists", True)
    with pytest.raises(ConfigError, match=r"unknown key deliver\.sinks\.0\.parquet\.speed=3"):
        read_settings(Deliver.model_validate({"sinks": [{**sink, "speed": 3}]}), {})
    after = jsonschema.Draft7Validator(config_schema())
    values = {**SMALL, "deliver": {"sinks": [sink]}}
    assert (before.is_valid(values), after.is_valid(values)) == (False, True)
    section = configuration_page().partition("## `deliver.sinks parquet`\n")[2].partition("\n## ")[0]
    assert "Parquet files with one row per list entry." in section
    assert "| `path` | text | required | Folder of the lists" in section
