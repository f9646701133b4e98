"""What the server's answers are in Python. One file a family, so that a command loads only what it reads."""
