"""What the service reports about itself: metrics for Prometheus, and OpenTelemetry traces.

`choose` loads the two libraries, and only for services that use them. The rest of the service knows
`boxd.observation` alone.
"""
