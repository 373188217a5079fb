"""Commands in boxes: how they run, and how much of their output the daemon stores."""
