"""HTML markup, the style sheet, and formats of numbers."""
