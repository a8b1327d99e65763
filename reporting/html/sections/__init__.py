"""The sections of the report: functions that convert results of jobs to HTML.

If a result is missing, the section names the job that writes it.
"""
