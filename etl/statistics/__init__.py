"""Statistics of the training rows, computed by Spark: moments, medians, keyed tables, vocabularies."""
