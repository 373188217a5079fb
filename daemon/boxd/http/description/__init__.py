"""The vocabulary in which routes describe themselves: operations, parameters, errors, schemas."""
