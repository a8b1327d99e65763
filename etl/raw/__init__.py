"""Raw logs: the files of a day, file splits, compression, and lines as typed columns."""
