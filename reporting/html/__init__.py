"""The HTML report of a run. `sections` has its sections. Charts are inline SVG and need no network."""
