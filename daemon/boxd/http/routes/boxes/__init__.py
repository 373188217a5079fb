"""Protocol adapter only. The routes of boxes: `/v1/boxes` and below."""
