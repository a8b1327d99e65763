"""DAGs for Airflow 3.

The DAGs start jobs by name. They import none of this project's packages, because Airflow has its own Python
environment.
"""
