"""What users write and what they are shown: objects, their defaults and their validity. No I/O, no clock."""
