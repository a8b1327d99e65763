"""The data report compares the log of a day with the log on which the model was trained.

`column_summary` computes the figures of each column from its value counts. It also compares the values of a
day with the values of the train days. `metrics.psi` computes drift, and `checks` compares figures with their
limits. `report` publishes the figures of each day, and the data report of a run date. `day_counts` checks the
numbers of rows of a day.
"""
