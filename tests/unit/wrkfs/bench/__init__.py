"""The works that a drive is measured by."""
