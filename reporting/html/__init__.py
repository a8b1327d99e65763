"""The HTML report of a run: one file a section, charts as inline SVG, no network when it is read."""
