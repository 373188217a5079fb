"""Documentation that tests run and measure, and a shell for its commands."""
