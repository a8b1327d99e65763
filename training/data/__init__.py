"""From the files of a split to the batches of one rank: who reads which rows, in which order."""
