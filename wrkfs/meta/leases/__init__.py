"""Leases: metadata that a mount caches, and how it is invalidated."""
