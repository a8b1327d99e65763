"""DAGs for Airflow 3. They know jobs by name and nothing of our packages: Airflow runs in an environment of its own."""
