"""The jobs, one per file. A job parses its options, calls the library and writes a summary."""

from conf.process import collect_rarely

collect_rarely()  # runs before a job's own imports, because Python first imports this package
