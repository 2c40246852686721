"""A mind in a place: prompt, policies, the main loop, the terminal."""
