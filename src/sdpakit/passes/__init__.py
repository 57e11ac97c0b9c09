"""What happens to a program between its construction and a backend."""
