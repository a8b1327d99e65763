"""Files of value counts for each day, and the statistics that are computed from them without reading rows."""
