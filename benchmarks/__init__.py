"""Benchmarks of Nightrank.

Each script runs our code and its peers (the programs that we compare our code with) on one machine, with the
same input. The script prints a table and, on the last line, one JSON object.
"""
