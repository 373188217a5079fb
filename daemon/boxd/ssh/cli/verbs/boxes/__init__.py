"""Verbs for boxes: list, create, change, copy, share and remove them."""
