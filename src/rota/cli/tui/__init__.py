"""`rota top`: GPUs, queue and one's own runs, live in a terminal."""
