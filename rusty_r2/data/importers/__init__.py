"""What other programs recorded becomes traces: one module a kind, and kinds.py which tells them apart."""
