"""The run card: what a run was, what came of it, how sure that is, and how to have it again; on one page.

`facts.facts_of` gathers it, `page` and `markdown` show it, `files` writes report.html, card.md and report.json.
"""
