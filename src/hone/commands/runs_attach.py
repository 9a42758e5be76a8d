"""`hone runs attach RUN`: watch a run that another process writes."""

from __future__ import annotations

import shlex

from hone.config.runs import RunsAttachConfig
from hone.runs.follow import follow
from hone.runs.listing import find_run
from hone.runs.summary import summarize
from hone.runs.tail import Rewound
from hone.runs.words import numbers, print_next, standing


def run(config: RunsAttachConfig) -> int:
    """Shows the run until it ends, then how it ended; of one that has ended, its last state. Returns 0."""
    path = find_run(config.run)
    one = summarize(path)
    if one.status != "running":
        print("\n".join([standing(one), *numbers(one)]))
        print_next(one)
        return 0
    try:
        while one.status == "running":
            print(standing(one), flush=True)
            try:
                follow(one, config.display)
            except Rewound:
                print("A resume has rolled the run back.", flush=True)
            one = summarize(path)
    except KeyboardInterrupt:
        print(f"\nNot watching any more; {path} goes on. To end it: hone runs stop {shlex.quote(str(path))}")
        return 0
    print(standing(one))
    print_next(one)
    return 0
