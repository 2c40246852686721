"""A safe place to work: sandbox levels, verdict, environment, tasks."""
