"""Makes top-k lists: scores (user, item) pairs, ranks items, and computes statistics of the lists."""
