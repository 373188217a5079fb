"""The schema of a volume, its SQL functions, and their installation."""
