"""Top-k lists: scores (user, item) pairs, ranks items, and computes facts and changes of the lists."""
