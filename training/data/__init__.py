"""The loader: from the files of a split to the batches of one rank, in a reproducible random order."""
