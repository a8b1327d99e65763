"""How often Python looks for garbage that reference counting cannot free: objects that refer to each other.

By default, Python looks after every 700 new objects. A job imports some hundred thousand objects that live as
long as the job, and each search in the oldest generation visits all of them.
"""

from __future__ import annotations

import gc

# Number of new objects after which Python looks for garbage, and number of searches in a generation after
# which it looks in the next older one, too.
_THRESHOLDS = (20_000, 20, 20)
_DEFAULT_THRESHOLDS = gc.get_threshold()  # Python's, unless the process has changed them before


def collect_rarely() -> None:
    """Makes Python look for garbage less often. Call this before the imports of a process."""
    gc.set_threshold(*_THRESHOLDS)


def collect_often() -> None:
    """Sets the thresholds from before `collect_rarely` again.

    A process with a Spark session needs this. Each Python object for an object of the JVM refers to itself
    after its first call, so without searches the JVM's memory fills with objects that nobody uses.
    """
    gc.set_threshold(*_DEFAULT_THRESHOLDS)


def ignore_imported() -> None:
    """Excludes the objects that exist now from later searches. Only the first call in a process does so.

    Call this after the imports of a process. Garbage among these objects is never freed, so later calls would
    keep the garbage of the work between them.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()
