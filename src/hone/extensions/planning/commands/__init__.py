"""`hone plan` and `hone doctor`."""
