"""The run card: what a run was, what came of it, how sure that is, and how to have it again; on one page.

`facts.facts_of` gathers it, `files` writes report.html and report.json, `view` shows it in `hone view`.
"""
