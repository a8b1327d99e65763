"""The data report: is the log of a day like the log that the model was trained on?

`counts` turns rows into (column, value, count), and `column_summary` reduces these to the figures of a
column. `profile` publishes them for each day. `day_values` compares the values of a day with those of the
train days. `metrics.psi` computes drift, `checks` has the limits, and `report` publishes the report of a run
date.
"""
