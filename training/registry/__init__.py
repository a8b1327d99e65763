"""Model versions and the champion of each date, as JSON files in the lake and as copies in MLflow."""
