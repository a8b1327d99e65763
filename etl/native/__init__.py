"""A compiled C++ library and its ctypes interface.

The library scans text, looks up values and adds counts.
"""
