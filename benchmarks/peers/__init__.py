"""The systems ours is measured against, one a file. Each runs in a process of its own: see benchmarks.contender."""
