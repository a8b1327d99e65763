"""`make campaign`: faults at random instants and places of a small lake, drawn from a seed."""
