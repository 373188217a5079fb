"""Unit tests of boxd.mcp."""
