"""Parsers of short texts: box specs, references, durations, addresses, sizes, preview labels.

All functions are pure, except for the one that reads a DSN from a file.
"""
