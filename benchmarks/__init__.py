"""Benchmarks of Nightrank.

Each script runs our code and the programs that we compare it with (peers) on one machine, with the same
input. It prints a table and, on the last line, one JSON object.
"""
