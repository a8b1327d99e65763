"""A compiled C++ library and its ctypes interface: it scans text, looks up values and adds counts."""
