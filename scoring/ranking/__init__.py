"""Top-k lists: scores of (user, item) pairs, ranking, and facts and changes of lists."""
