"""Statistics of the training rows, computed by Spark: moments, quantiles, statistics by key, vocabularies."""
