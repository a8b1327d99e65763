"""Checks whether a node can run the jobs of a Spark profile, before a job fails on it.

    python -m setup.doctor --profile etl-gpu [--profile on-standalone] [--lake PATH]

`software` compares versions, `gpus` checks the driver and the devices, `resources` checks cores, memory,
disks and ports, and `lake` checks the storage. Each module returns findings (findings.py).
"""
