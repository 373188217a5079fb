"""Tools that work with boxes: create, run, files, snapshots, shares."""
