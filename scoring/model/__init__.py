"""The model that scores: this package finds the champion, loads it onto a device, and runs it."""
