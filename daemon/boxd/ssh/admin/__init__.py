"""The administrators' console (`ssh sudo@HOST COMMAND`). Protocol adapter only."""
