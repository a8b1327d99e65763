"""What scoring reads: requests from driver to workers, and the feature rows of a split."""
