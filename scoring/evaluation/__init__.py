"""Quality of predictions, ranked groups and lists against clicks; the gate for challengers."""
