"""What is read from users, clients, disks and the kernel, changed at random: it is refused in a sentence, or read."""
