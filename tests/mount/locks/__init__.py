"""Locks of programs on real mounts."""
