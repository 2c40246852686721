"""Traces and text become rows."""
