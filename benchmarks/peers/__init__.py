"""The programs that our code is compared with, one per file.

benchmarks.contender describes the interface of the peers of the ETL benchmark.
"""
