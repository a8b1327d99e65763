"""Configuration, contracts and the lake's layout. Imports nothing of ours, and neither pyspark nor torch."""
