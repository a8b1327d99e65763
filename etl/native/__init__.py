"""The compiled library for text (C++) and its ctypes interface: scans, lookups, and sums of counts."""
