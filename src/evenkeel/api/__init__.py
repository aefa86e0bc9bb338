"""The objects that users write and read: their types, defaults and validation. No I/O, no clock."""
