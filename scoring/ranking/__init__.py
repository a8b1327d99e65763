"""Top-k lists: scores pairs of user and item, ranks items, and computes facts of the lists."""
