"""The jobs, one per file. A job parses its options, calls the library and writes a summary."""

from conf.process import collect_rarely

collect_rarely()  # Python imports this package before the module of a job, so this call comes first
