"""Rows become weights."""
