"""Shows one user's list and the log of champions on a terminal."""
