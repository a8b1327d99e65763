"""Publishes tables with the latest features of users and items, and with the titles of items.

The job `score_daily` reads the tables of features.
"""
