"""GPUs for a command of this terminal: ask for them, wait, become the command."""
