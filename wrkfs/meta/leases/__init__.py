"""Leases: metadata that a mount caches, and how it is invalidated.

How long a lease lasts: `wrkfs.meta.interface.lease_times`.
"""
