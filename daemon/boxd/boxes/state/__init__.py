"""State of boxes: rows, requests, settings, locks and the change feed."""
