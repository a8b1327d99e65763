"""The model that scores: finds the champion, loads it onto a device, and runs it in micro-batches."""
