"""The program that sanitises documents of strangers, and its start."""
