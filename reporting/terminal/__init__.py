"""Progress lines, tables and bars on a terminal."""
