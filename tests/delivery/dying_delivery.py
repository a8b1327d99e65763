"""A delivery to PostgreSQL whose process dies before or after one of its statements."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from scoring.delivery.postgresql import Connection
from scoring.delivery.published_lists import PublishedLists
from scoring.delivery.sinks import jdbc


def deliver_and_die(sink: jdbc.Settings, lists: PublishedLists, number: int, when: str) -> None:
    """Delivers lists. The process is killed at the statement of this number; the copy of the rows is one.

    Args:
        sink: the sink.
        lists: the lists, as a table.
        number: from 1.
        when: `before` or `after`.
    """
    count = 0

    def dying(real: Any) -> Any:
        def called(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == number and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = real(*arguments)
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "execute", dying(Connection.execute))
        patch.setattr(Connection, "copy", dying(Connection.copy))
        jdbc.deliver(sink, lists)
