"""Guest agents as local processes, and replacements for them."""
