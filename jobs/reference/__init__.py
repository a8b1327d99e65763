"""Reference pages and JSON schemas of configurations, generated from their types by `make docs`."""
