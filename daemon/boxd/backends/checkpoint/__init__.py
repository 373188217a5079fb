"""Checkpoints by CRIU: dump, restore, and the checks around them."""
