"""Mounting FUSE file systems that another process serves, and tuning them."""
