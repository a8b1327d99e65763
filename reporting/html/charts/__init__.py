"""Charts as inline SVG: an axis chooses its ticks, a frame draws them, line, bars and scatter add marks."""
