"""The SSH front door. Protocol adapter only."""
