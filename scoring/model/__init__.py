"""Finds the champion, loads it onto a device, and runs it."""
