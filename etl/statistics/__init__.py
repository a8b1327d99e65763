"""Statistics of the training rows, computed by Spark: moments, medians, statistics by key, vocabularies."""
