"""The machine: files, capacity, what the kernel tells, and what about it would break a promise."""
