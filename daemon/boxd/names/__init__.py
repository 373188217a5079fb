"""Texts that name things: box specs, references, durations, preview labels. Pure functions."""
