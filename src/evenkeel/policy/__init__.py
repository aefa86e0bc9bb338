"""Every decision, as a function of what it is given: no I/O, no clock, no log."""
