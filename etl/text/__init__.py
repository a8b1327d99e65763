"""The arrow engine's way through a day of text: workers open the raw files themselves, in two passes over slices."""
