"""Time rules: when a box suspends, expires or is removed."""
