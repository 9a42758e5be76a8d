#!/usr/bin/env bash
# Panes Trainer, Orchestrator and Inference in a tmux session, which follow the logs of a run in several processes.
#
#   bash scripts/tmux.sh [OUTPUT_DIR] [-s SESSION] [-d]
#
# OUTPUT_DIR is the run's (default: outputs); it need not be there yet. -s names the session (default: hone); -d leaves it
# in the background. A session of that name is used again, with panes for this run.
set -euo pipefail

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }
fail() { echo "error: $*" >&2; exit 2; }

output=outputs session=hone attach=1
while [ $# -gt 0 ]; do
    case $1 in
        -s | --session) session=${2:-}; [ -n "$session" ] || fail "$1 needs the name of a session"; shift 2 ;;
        -o | --output-dir) output=${2:-}; [ -n "$output" ] || fail "$1 needs a folder"; shift 2 ;;
        -d | --detached) attach=0; shift ;;
        -h | --help) usage; exit 0 ;;
        -*) fail "unknown option $1: there are -s SESSION, -o OUTPUT_DIR and -d" ;;
        *) output=$1; shift ;;
    esac
done
command -v tmux >/dev/null || fail "tmux is not installed (apt-get install tmux): \`tail -F $output/logs/*.log\` shows the same"

# What runs in a pane: `tail -F` waits for a file that is not there yet, and finds the one of a new run.
follow() {
    printf 'exec tail -q -n +1 -F --'
    for name in "$@"; do printf ' %q' "$output/logs/$name.log"; done
    printf ' 2>/dev/null'
}

if tmux has-session -t "=$session" 2>/dev/null; then
    window=$(tmux new-window -d -P -F '#{window_id}' -t "=$session:" -n RL "bash -c $(printf %q "$(follow trainer)")")
else
    window=$(tmux new-session -d -P -F '#{window_id}' -s "$session" -n RL -x 160 -y 48 \
        "bash -c $(printf %q "$(follow trainer)")")
fi
tmux split-window -t "$window" "bash -c $(printf %q "$(follow orchestrator)")"
tmux split-window -t "$window" "bash -c $(printf %q "$(follow inference inference-{0..7})")"
tmux select-layout -t "$window" even-vertical >/dev/null
tmux set-option -w -t "$window" pane-border-status top >/dev/null
tmux set-option -w -t "$window" pane-border-format ' #{pane_title} ' >/dev/null
panes=($(tmux list-panes -t "$window" -F '#{pane_id}'))
titles=(Trainer Orchestrator Inference)
for i in 0 1 2; do tmux select-pane -t "${panes[$i]}" -T "${titles[$i]}"; done
tmux select-pane -t "${panes[1]}"
tmux select-window -t "$window"

echo "Session $session follows $output/logs; leave it with Ctrl-b d, end it with: tmux kill-session -t $session"
[ "$attach" = 1 ] && [ -t 1 ] || exit 0
if [ -n "${TMUX:-}" ]; then tmux switch-client -t "=$session"; else exec tmux attach-session -t "=$session"; fi
