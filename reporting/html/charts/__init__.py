"""Charts as inline SVG: an axis chooses its ticks, a frame draws it, line, bars and scatter put marks inside."""
