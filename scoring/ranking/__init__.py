"""Makes top-k lists: scores (user, item) pairs, ranks items, and computes facts of the lists."""
