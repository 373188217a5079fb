"""Metadata of a volume: one SQL function per operation."""
