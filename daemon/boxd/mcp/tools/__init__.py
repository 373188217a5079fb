"""The tools: one folder for boxes, one for the drive, one for the account.

A tool translates: it checks arguments, calls an operation, and formats the result.
"""
