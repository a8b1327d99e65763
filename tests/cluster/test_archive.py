"""What the archive of `make dist` holds: all that jobs import, and nothing of the checkout.

That its chain runs: test_chain.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.node import Node

pytestmark = pytest.mark.timeout(900)


def test_what_is_imported_is_the_archives(node: Node) -> None:
    """The environment is complete without the packages of tests, and jobs run what the wheel holds."""
    result = node.run(
        "cd /; python -c 'import jobs, etl, training, sys; "
        'print(jobs.__file__, sys.prefix, *sys.path, sep="\\n")\''
    )
    assert result.exit_code == 0, result.log
    origin, prefix, *path = result.log.splitlines()
    assert Path(prefix) == node.folder / "environment"
    assert Path(origin).is_relative_to(node.folder / "environment")
    assert not any(entry.startswith(os.getcwd()) for entry in path if entry)
    missing = node.run("cd /; python -c 'import pytest'")
    assert missing.exit_code == 1
    assert "No module named 'pytest'" in missing.log
