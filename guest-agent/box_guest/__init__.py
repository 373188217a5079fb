"""The guest agent (init of a box) and the mount process beside it."""
