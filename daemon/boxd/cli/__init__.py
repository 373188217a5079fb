"""Protocol adapter only. The command line: flags in, lines of text out.

`main` parses; `flags` has the flags, `settings` makes a `Config` of them; a module for each group
of commands. `archives` does what `backup` and `restore` ask for.
"""
