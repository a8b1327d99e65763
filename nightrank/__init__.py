"""Reads and uses the tables, workflows, models and lists that the jobs of Nightrank publish.

    import nightrank

    lake = nightrank.open("lake/generated")
    lake.recommendations("2026-01-08").pandas()            # the lists of a date
    lake.users("2026-01-08").arrow()                       # features, one row per user
    lake.workflow().encode(rows)                           # features of raw rows
    model = lake.champion("2026-01-08")
    model.score(rows)                                      # click probabilities of raw rows
    model.recommend(["u1", "u2"], k=5).pandas()            # lists of some users
    nightrank.Workflow(groups).fit(rows).transform(rows)   # features that are learned from a frame
    nightrank.train(workflow, rows, model={...}).score(rows)  # a model that is trained on a frame
    nightrank.ClickClassifier("dlrm").fit(rows, clicks).predict_proba(rows)  # the same, as in scikit-learn
    nightrank.Recommender("sasrec").fit(interactions).recommend(["u1"], k=5)  # lists, learned from a frame
    nightrank.metrics.auc(labels, probabilities)           # measures, with confidence intervals

The package needs no Spark session. docs/python.md shows each call with its result. `nightrank.online` looks
up lists and features of single users and items in Redis. `nightrank` is also a command (`nightrank --help`).
A module is imported only when one of its names is first used, so `import nightrank` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conf.errors import ConfigError, DataError, InfrastructureError, NightrankError
    from nightrank import metrics
    from nightrank.click_classifier import ClickClassifier
    from nightrank.frame_training import train
    from nightrank.frames import Frame
    from nightrank.lake import Lake, Published
    from nightrank.lake import open_lake as open
    from nightrank.model import Model
    from nightrank.recommender import Recommender
    from nightrank.workflow import Workflow

__all__ = [
    "ClickClassifier",
    "ConfigError",
    "DataError",
    "Frame",
    "InfrastructureError",
    "Lake",
    "Model",
    "NightrankError",
    "Published",
    "Recommender",
    "Workflow",
    "__version__",
    "metrics",
    "open",
    "train",
]

__version__ = "0.2.0"  # pyproject.toml contains the same version

_ERRORS = "conf.errors"
# Maps each public name to the module that defines it, and to its name in that module (None: the same name).
_MODULES = {
    "ClickClassifier": ("nightrank.click_classifier", None),
    "ConfigError": (_ERRORS, None),
    "DataError": (_ERRORS, None),
    "Frame": ("nightrank.frames", None),
    "InfrastructureError": (_ERRORS, None),
    "Lake": ("nightrank.lake", None),
    "Model": ("nightrank.model", None),
    "NightrankError": (_ERRORS, None),
    "Published": ("nightrank.lake", None),
    "Recommender": ("nightrank.recommender", None),
    "Workflow": ("nightrank.workflow", None),
    "open": ("nightrank.lake", "open_lake"),
    "train": ("nightrank.frame_training", "train"),
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used (PEP 562)."""
    if name == "metrics":
        return import_module("nightrank.metrics")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = _MODULES[name]
    value = globals()[name] = getattr(import_module(module), original or name)
    return value


def __dir__() -> list[str]:
    """Returns the public names, for completion in notebooks."""
    return sorted({*globals(), *__all__})
