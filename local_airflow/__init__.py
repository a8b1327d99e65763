"""An Airflow of one's own on loopback, for a first look at the DAGs and for their tests: `make airflow`."""
