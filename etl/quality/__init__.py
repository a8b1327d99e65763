"""The data report compares the log of a day with the log on which the model was trained.

`counts` counts how often each value of each column occurs, and `column_summary` computes the figures of each
column from these counts. `profile` publishes the figures of each day. `new_values` compares the values of a
day with the values of the train days. `metrics.psi` computes drift, `checks` compares figures with their
limits, and `report` publishes the data report of a run date.
"""
