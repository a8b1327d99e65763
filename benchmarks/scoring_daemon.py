"""The process that the scoring benchmarks' Python workers are forked from: Nightrank's own, which knows their architectures too."""

from __future__ import annotations

from benchmarks.architectures import make_known
from spark import worker_daemon

if __name__ == "__main__":
    make_known()
    worker_daemon.main()
