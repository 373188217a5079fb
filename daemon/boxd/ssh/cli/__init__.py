"""The management CLI (`ssh cli@HOST`), one file for each verb. Protocol adapter only."""
