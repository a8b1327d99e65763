"""The HTML report of a run. Each section has its own module. Charts are inline SVG and need no network."""
