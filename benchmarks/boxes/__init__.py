"""The times of boxes: creation, resume, fork, and many at once."""
