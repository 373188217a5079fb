"""Programs that each use one facility of the kernel, for a box.

A facility is a generator: up to its `yield` it uses the facility, and after it asserts that the
facility is as before. Each runs in a process of its own. `run` makes RESULTS/NAME.ready for each
program that has come to its `yield`; when GO exists, each writes `kept`, or what is lost, to
RESULTS/NAME.
"""
