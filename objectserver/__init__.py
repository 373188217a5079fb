"""A small S3-compatible object server: one bucket, many credentials, each limited to a prefix.

It runs as its own process (`python -m objectserver CONFIGURATION`).
"""
