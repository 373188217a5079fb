"""The daemon's end of the tunnel that each guest agent dials."""
