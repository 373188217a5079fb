"""Tools that work with the drive of a workspace."""
