"""The drive of a box that mounts it from inside."""
