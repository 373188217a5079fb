"""The management CLI behind `ssh cli@host`: one file per verb. Protocol adapter only."""
