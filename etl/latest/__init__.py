"""Finds the latest features and histories of users and items. Lists are scored with these features."""
