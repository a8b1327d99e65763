"""A compiled C++ library and its ctypes interface.

The library scans text, decodes pages of Parquet files, looks up values and adds up counts.
"""
