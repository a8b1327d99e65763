"""The compiled library (C++) that scans text, looks up values and adds counts, and its ctypes interface."""
