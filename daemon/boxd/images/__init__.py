"""Box images and the guest runtime."""
