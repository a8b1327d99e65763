"""Benchmarks for one GPU, with the shapes of Criteo's terabyte log.

Without a GPU, the scripts run with tiny shapes and measure nothing.
"""
