"""Shows progress lines, tables and bars on a terminal."""
