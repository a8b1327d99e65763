"""DAGs for Airflow 3.

They start jobs by name and import none of our packages, because Airflow has its own environment.
"""
