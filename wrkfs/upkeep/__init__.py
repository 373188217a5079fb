"""Upkeep of a volume: garbage collection, trash, compaction, checks, dump and load."""
