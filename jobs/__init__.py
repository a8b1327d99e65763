"""The jobs, one per file. Each parses its options, calls the library, publishes and writes a summary."""
