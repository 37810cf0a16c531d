"""The dict a user works on, and payloads: states on their way between functions."""
