"""The inputs of scoring: requests that the driver sends to the workers, and the feature rows of a split."""
