"""Checks whether a node can run the jobs of a Spark profile, before a job fails on it.

    python -m setup.doctor --profile etl-gpu [--profile on-standalone] [--lake PATH]

`software` checks versions against each other, `gpus` the driver and the devices, `resources` what the machine
has, `lake` the storage. Each module returns findings (findings.py), and knows nothing of the others.
"""
