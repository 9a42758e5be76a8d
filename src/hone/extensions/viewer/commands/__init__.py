"""`hone view` and `hone report`."""
