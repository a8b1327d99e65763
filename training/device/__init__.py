"""The device of a process: its choice, mixed precision, and memory."""
