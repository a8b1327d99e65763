"""Files of value counts per day, and everything that is computed from them without reading a row."""
