"""The names that plug-ins import: for operators, models, losses, rules, sources, sinks and readers.

docs/extending.md describes how to write plug-ins.

    from nightrank.extending import Operator, RowWise, Statistics, Step

A package that imports only from this module also works with the wheel of `nightrank`. The modules that define
these names have different names in the wheel and in the checkout. Each of them is imported when one of its
names is first used. So a plug-in that defines only an operator does not import torch or Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conf.errors import ConfigError, DataError, InfrastructureError
    from conf.lazy_imports import F, T, Window
    from conf.list_types import AttributeRule, RuleSettings, SourceSettings, WindowedSource
    from conf.raw_types import EventTime, FormatSettings, RawTable
    from conf.train_types import LossSettings
    from conf.types import SinkSettings, Strict
    from etl.ops.arrays import as_doubles, from_doubles
    from etl.ops.base import Fitted, Operator, RowChanger, RowFilter, RowWise, Step, Type
    from etl.ops.tables import LocalTables, Tables
    from etl.ops.training_statistics import MergeableStatistic, Need, Statistics
    from etl.raw.file_splits import FileSplit
    from etl.readers.arrow_blocks import check_schema, typed_block
    from etl.readers.base import RawBlock, TableReader
    from scoring.candidates.source_tables import SourceInputs, SourceTables
    from scoring.delivery.published_lists import Delivered, PublishedLists
    from scoring.rules.item_rule import ItemRule, RuleInputs
    from storage.file_io import filesystem
    from training.data.batch import Batch, Vectors
    from training.models.click_model import ClickModel
    from training.models.factorization import VectorModel
    from training.models.inputs import Inputs
    from training.models.layers import in_float32
    from training.settings import Features

__all__ = [
    "AttributeRule",
    "Batch",
    "ClickModel",
    "ConfigError",
    "DataError",
    "Delivered",
    "EventTime",
    "F",
    "Features",
    "FileSplit",
    "Fitted",
    "FormatSettings",
    "InfrastructureError",
    "Inputs",
    "ItemRule",
    "LocalTables",
    "LossSettings",
    "MergeableStatistic",
    "Need",
    "Operator",
    "PublishedLists",
    "RawBlock",
    "RawTable",
    "RowChanger",
    "RowFilter",
    "RowWise",
    "RuleInputs",
    "RuleSettings",
    "SinkSettings",
    "SourceInputs",
    "SourceSettings",
    "SourceTables",
    "Statistics",
    "Step",
    "Strict",
    "T",
    "TableReader",
    "Tables",
    "Type",
    "VectorModel",
    "Vectors",
    "Window",
    "WindowedSource",
    "as_doubles",
    "check_schema",
    "filesystem",
    "from_doubles",
    "in_float32",
    "typed_block",
]

_NAMES = {
    "conf.errors": ("ConfigError", "DataError", "InfrastructureError"),
    "conf.lazy_imports": ("F", "T", "Window"),
    "conf.train_types": ("LossSettings",),
    "conf.raw_types": ("EventTime", "FormatSettings", "RawTable"),
    "conf.list_types": ("AttributeRule", "RuleSettings", "SourceSettings", "WindowedSource"),
    "conf.types": ("SinkSettings", "Strict"),
    "etl.ops.base": ("Fitted", "Operator", "RowChanger", "RowFilter", "RowWise", "Step", "Type"),
    "etl.ops.arrays": ("as_doubles", "from_doubles"),
    "etl.ops.tables": ("LocalTables", "Tables"),
    "etl.ops.training_statistics": ("MergeableStatistic", "Need", "Statistics"),
    "etl.raw.file_splits": ("FileSplit",),
    "etl.readers.arrow_blocks": ("check_schema", "typed_block"),
    "etl.readers.base": ("RawBlock", "TableReader"),
    "scoring.candidates.source_tables": ("SourceInputs", "SourceTables"),
    "scoring.delivery.published_lists": ("Delivered", "PublishedLists"),
    "scoring.rules.item_rule": ("ItemRule", "RuleInputs"),
    "storage.file_io": ("filesystem",),
    "training.data.batch": ("Batch", "Vectors"),
    "training.models.click_model": ("ClickModel",),
    "training.models.factorization": ("VectorModel",),
    "training.models.inputs": ("Inputs",),
    "training.models.layers": ("in_float32",),
    "training.settings": ("Features",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    """Returns the public names."""
    return sorted({*globals(), *__all__})
