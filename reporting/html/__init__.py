"""The HTML report of a night: facts from the lake, charts as inline SVG, one file a section, no network when read."""
