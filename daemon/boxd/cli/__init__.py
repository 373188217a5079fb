"""The command line of the daemon, a protocol adapter: it parses flags and prints lines of text.

`main` parses. `parsers` builds parsers from the declarations in `boxd.config`; `settings` builds a
`Config` from the parsed flags. Each group of commands has a module. `archives` implements `backup`
and `restore`.
"""
