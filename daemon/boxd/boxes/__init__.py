"""Life of a box."""
