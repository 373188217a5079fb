"""Real boxes: backends, disks, images, suspension and programs in boxes."""
