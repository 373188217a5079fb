"""The backends that create boxes: one interface, several implementations."""
