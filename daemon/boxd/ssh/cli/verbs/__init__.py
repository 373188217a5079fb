"""The verbs of the management CLI, in one folder for each topic. Protocol adapter only."""
