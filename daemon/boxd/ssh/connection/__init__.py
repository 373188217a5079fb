"""The SSH listener, its connections and their channels. Protocol adapter only."""
