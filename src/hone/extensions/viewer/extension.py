"""`hone view` and `hone report`: runs in a browser, and the card of one."""

from hone.extension import Command, Watch

COMMANDS = {
    "view": Command("look at runs in a browser: curves, and their samples", "ViewConfig", "view.run", __name__),
    "report": Command("the run card: what came of a run, and how sure", "ReportConfig", "report.run", __name__),
}
OBSERVERS = {"card": Watch(50, "card.observer.observer", __name__)}
