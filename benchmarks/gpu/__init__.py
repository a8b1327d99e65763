"""Benchmarks for one GPU, with the shapes of Criteo's terabyte log. Without a GPU they run small and measure
nothing.
"""
