"""The loader: reads the files of a split, and yields batches of one rank in a reproducible random order."""
