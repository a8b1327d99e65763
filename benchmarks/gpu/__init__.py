"""Benchmarks for one GPU, with the shapes of Criteo's terabyte log.

Without a GPU, they run with tiny shapes and measure nothing.
"""
