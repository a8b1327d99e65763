"""HTML markup, the style sheet, and how numbers are written."""
