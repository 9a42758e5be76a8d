"""Alarms and predictions of a run."""

from hone.extension import Command, Key, Record, Watch

COMMANDS = {
    "runs predictions": Command(
        "list predictions and their results", "RunsPredictionsConfig", "score_predictions", __name__
    ),
}
KEYS = {
    "run.alarms": Key(
        "AlarmsConfig",
        {},
        "Conditions to check at every step, and the action if a condition holds.",
        __name__,
        {"decides": "nothing"},
    ),
    "run.predict": Key(
        "list[str]",
        [],
        'Your predictions, such as "loss@40 < 0.6 p=0.8" (repeatable): fixed before step 0, scored at the end.',
        __name__,
        {"common": "watching", "decides": "nothing", "listed": False},
    ),
}
OBSERVERS = {
    "alarms": Watch(0, "watch.observer", __name__, always=True),
    "predictions": Watch(65, "predictions.observer", __name__, always=True, early=True),
}
RECORDS = {"predictions": Record("predicted", "predictions", __name__)}
