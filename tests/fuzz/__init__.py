"""Fuzzing: input from users, clients, disks and the kernel is changed at random. It is read, or refused with a
sentence."""
