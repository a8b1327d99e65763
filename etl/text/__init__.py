"""Days of text in two passes: Python workers open the raw files and read one file split per task."""
