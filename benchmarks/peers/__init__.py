"""The peers that ours is compared with, one a file. Each runs in a process of its own: see
benchmarks.contender.
"""
