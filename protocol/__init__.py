"""What actors say to each other: frozen data and pure rules, without Ray, I/O or clock reads."""
