"""Draws charts as inline SVG: line, bar and scatter charts, with axes, ticks and a frame."""
