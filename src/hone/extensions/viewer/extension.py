"""`hone view` and `hone report`: runs in a browser, and the card of a run."""

from hone.extension import Command, Key, Watch

REQUIRES = ("audit",)
COMMANDS = {
    "view": Command("look at runs in a browser: curves and samples", "ViewConfig", "view.run", __name__),
    "report": Command("write a card of a run: results and uncertainty", "ReportConfig", "report.run", __name__),
}
OBSERVERS = {"card": Watch(50, "card.observer.observer", __name__)}
KEYS = {
    "run.report": Key(
        "bool",
        True,
        "At the end, write the run card (report.html, report.json).",
        __name__,
        {"decides": "nothing", "listed": False},
    )
}
