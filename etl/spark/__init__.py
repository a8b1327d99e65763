"""Frames of raw rows: reading and splitting them, quarantine, and the latest features of users and items."""
