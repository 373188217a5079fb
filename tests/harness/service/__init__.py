"""`boxd serve` as a process: its users, its crashes and its leftovers."""
