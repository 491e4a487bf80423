"""What the backend did with a program, and why: collected, told and drawn."""
