"""The sections of the report: functions that turn facts into HTML.

If facts are missing, a section names the job that has no result.
"""
