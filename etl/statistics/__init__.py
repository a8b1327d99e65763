"""Statistics of the training rows: moments, quantiles, mergeable statistics, and ids of vocabularies."""
