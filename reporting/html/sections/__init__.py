"""The sections of the report: functions that turn facts into markup, or name the job that has not run."""
