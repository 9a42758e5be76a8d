"""Parts of an RL step: drawing, sampling and grading groups; and the processes of mode split."""
