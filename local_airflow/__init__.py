"""`make airflow`: an Airflow on 127.0.0.1, to try the DAGs and to test them."""
