"""The tools, one family a file. Each only translates: arguments, an operation, its result."""
