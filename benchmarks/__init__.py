"""Benchmarks: each script runs ours and its peers side by side, on one machine and one input, and prints one JSON line."""
