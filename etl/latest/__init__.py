"""Publishes tables with the latest features of users and items, and with the titles of items.

The job that scores lists of recommendations reads the tables of features.
"""
