"""The sections of the report: functions that convert facts to HTML.

If facts are missing, a section names the job that has no result.
"""
