"""Answers about one user's list, and the log of champions, for a terminal."""
