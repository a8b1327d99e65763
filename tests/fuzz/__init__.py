"""Fuzzing: compiled code under sanitizers, and readers of files, with random and mutated inputs (make fuzz)."""
