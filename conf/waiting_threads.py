"""How the threads of torch wait for one another on CPUs."""

from __future__ import annotations

import os

# libgomp reads this variable: how often a waiting thread looks again before it sleeps. Its default of 300,000
# takes about a millisecond.
_VARIABLE, _LOOKS = "GOMP_SPINCOUNT", "1000"


def limit_spinning() -> None:
    """Makes waiting threads of torch sleep after some microseconds, unless the environment says otherwise.

    By default, a thread that waits for the others keeps its core busy. If the loader, a second rank or a
    Spark task then wants the core, every operation of torch has to wait for it.

    OpenMP reads the environment when torch is imported. So the packages that import torch call this function
    first, in their `__init__.py`.
    """
    os.environ.setdefault(_VARIABLE, _LOOKS)
