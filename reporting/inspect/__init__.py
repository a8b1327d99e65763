"""Shows the list of one user and the log of champions on a terminal."""
