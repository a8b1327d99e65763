"""The command `make airflow`: runs Airflow on 127.0.0.1, to try and to test the DAGs."""
