"""The machine: files, capacity, notifications of the kernel, and the checks of `evenkeel doctor`."""
