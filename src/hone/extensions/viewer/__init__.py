"""`hone view`: run directories as web pages, on this machine only. Writes nothing into a run.

`Site` makes pages from templates, `app` serves them, `catalog` finds the runs. Of the heavy libraries none is needed:
neither torch nor transformers is imported here.
"""
