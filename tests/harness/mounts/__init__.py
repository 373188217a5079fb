"""Mounts of drives, and workloads on them."""
