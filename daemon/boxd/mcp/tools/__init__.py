"""The tools, one group per file.

A tool translates: it checks arguments, calls an operation, and formats the result.
"""
