"""What makes boxes: one interface, several implementations."""
