"""What a session refuses before it starts."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from spark.session import build_session


def test_profile_of_an_earlier_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this error, Spark reports only that its Python workers do not start."""
    monkeypatch.setattr("spark.session._configured", lambda settings: settings.get)
    with pytest.raises(ConfigError, match=r"etl\.worker_daemon, a module of an earlier release"):
        build_session("x", {"spark.python.daemon.module": "etl.worker_daemon"})
