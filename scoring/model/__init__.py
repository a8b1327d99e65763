"""The model that scores: which version serves, how it is loaded, and how many rows go through it at once."""
