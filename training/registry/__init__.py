"""Model versions and the champion of each date, as JSON files in the lake, mirrored to MLflow."""
