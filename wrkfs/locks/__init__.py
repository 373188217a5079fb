"""Advisory locks of one session: decided here under a delegation, else in the metadata store."""
