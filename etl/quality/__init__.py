"""Is today's log like the log the model was trained on? Profiles of days, drift between them, limits that warn or stop.

`counts` turns rows into (column, value, count); `summary` boils those down to what a profile holds; `profile` publishes the
profile of one part of the log; `compare` holds a day's values against the training window's; `drift` is the arithmetic;
`checks` has the limits; `report` puts it all together for one run date.
"""
