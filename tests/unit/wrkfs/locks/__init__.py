"""Tests of `wrkfs.locks`."""
