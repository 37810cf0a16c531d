"""The dict a user works on, and how it is saved."""
