"""The mount process: serves one volume on one host through pyfuse3."""
