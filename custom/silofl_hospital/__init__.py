"""What a person starts by hand at a hospital, a server or a clinic; no job reaches it."""
