"""`hone view`: run directories as web pages, on this machine only. Imports neither torch nor transformers."""
