"""Boxes: their lifecycle, limits, presence, state, time rules and commands."""
