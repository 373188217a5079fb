"""Groups of settings. `boxd.config.Config` has one field for each group."""
