"""`hone view`: run directories as web pages, for this machine only. Imports neither torch nor transformers."""
