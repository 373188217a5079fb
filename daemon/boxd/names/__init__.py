"""Parsing and formatting of box specs, references and durations. Pure functions."""
