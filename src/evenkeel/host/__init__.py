"""The machine: files, and later capacity, procfs, pressure and OOM notifications."""
