"""What `rota simulate` does around the simulator: reading what is asked, the server's history, files, and words."""
