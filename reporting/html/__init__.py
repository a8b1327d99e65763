"""The HTML report of a run.

`sections` contains its sections. Charts are inline SVG, and the page needs no network.
"""
