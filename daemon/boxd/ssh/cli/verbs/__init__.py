"""The verbs of the management CLI, one file each. Protocol adapter only."""
