"""Builds feature tables from raw click logs: reads, quarantines, splits, fits, applies, publishes."""
