"""`wandb` and `trackio`: what a run sends to an experiment tracker."""

from hone.extension import Key, Watch

KEYS = {
    "run.wandb": Key("WandbConfig", None, "Weights & Biases; off unless given.", __name__, {"decides": "nothing"}),
    "run.trackio": Key(
        "TrackioConfig", None, "Trackio; off unless given.", __name__, {"common": None, "decides": "nothing"}
    ),
}
OBSERVERS = {"trackers": Watch(10, "monitors.observer", __name__, early=True)}
