"""The jobs, one per file. A job parses its options, calls the library and writes a summary."""

from conf.process import collect_rarely

collect_rarely()  # this module is imported before the other imports of a job
