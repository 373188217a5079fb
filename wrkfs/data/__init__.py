"""Blocks of a volume in an S3-compatible object store."""
