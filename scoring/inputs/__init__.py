"""Inputs of scoring: requests from the driver to the workers, and the feature rows of a split."""
