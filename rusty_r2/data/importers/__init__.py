"""What other programs recorded becomes traces."""
