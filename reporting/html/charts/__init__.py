"""Charts as inline SVG: axes with ticks, the frame around a chart, and line, bar and scatter charts."""
