"""The elements of the report: HTML markup, the style sheet, and formats of numbers."""
