"""Programs that people run in boxes, each under a load that checks its state.

They run as a zip file in the `programs` image. `load.main` runs one of them.
"""
