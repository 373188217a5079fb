"""The works that a drive is measured by, in any directories; uses nothing else of the drive."""
