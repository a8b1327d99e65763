"""The worker daemon of the scoring benchmarks.

This is Nightrank's own daemon, but its workers can also load the architectures of benchmarks/architectures.
"""

from __future__ import annotations

from benchmarks.architectures import make_known
from spark import worker_daemon

if __name__ == "__main__":
    make_known()
    worker_daemon.main()
