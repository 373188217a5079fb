"""The command `box`, which uses the blocking client."""
