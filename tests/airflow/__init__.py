"""The DAGs: their Airflow and their cluster live as long as this folder is tested."""
