"""Documentation as tests run and measure it, and a shell for it."""
