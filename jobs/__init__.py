"""The jobs, one per file. A job parses its options, calls the library and writes a summary."""
