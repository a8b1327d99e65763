"""Benchmarks of Nightrank. Each script runs ours and its peers on one machine and one input, and prints a
JSON line.
"""
