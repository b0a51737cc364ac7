"""What an assistant (a language model with tools) may ask of runs, and the server that answers."""
