"""Protocol adapter only. Commands in boxes: exec, background commands, terminals, file watches."""
