"""Reads and uses what the jobs of Nightrank publish: tables, workflows, models and lists.

    import nightrank

    lake = nightrank.open("lake/generated")
    lake.recommendations("2026-01-08").pandas()            # the lists of a date
    lake.users("2026-01-08").arrow()                       # features, one row per user
    lake.workflow().encode(rows)                           # features of raw rows
    model = lake.champion("2026-01-08")
    model.score(rows)                                      # click probabilities of raw rows
    model.recommend(["u1", "u2"], k=5).pandas()            # lists of some users

No Spark session is needed. docs/python.md shows each call with its result. `nightrank.online` looks up lists
and features of single users and items in Redis.
"""

from conf.errors import ConfigError, DataError, InfrastructureError, NightrankError
from nightrank.frames import Frame
from nightrank.lake import Lake, open_lake
from nightrank.model import Model
from nightrank.published import Published
from nightrank.workflow import Workflow

open = open_lake

__all__ = [
    "ConfigError",
    "DataError",
    "Frame",
    "InfrastructureError",
    "Lake",
    "Model",
    "NightrankError",
    "Published",
    "Workflow",
    "open",
]
