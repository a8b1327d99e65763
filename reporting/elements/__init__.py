"""The elements of the report: HTML markup, the style sheet, charts, and formats of numbers."""
