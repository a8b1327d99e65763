"""The latest features and histories of each user and of each item, with which lists are scored."""
