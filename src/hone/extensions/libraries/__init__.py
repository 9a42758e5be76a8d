"""Tasks of other libraries, as environments: `reasoning-gym:leg_counting`, `verifiers:my-taskset`.

An adapter refuses what it cannot score faithfully, and says why. The libraries run in processes of their own
(`hone.grading.pool`), so nothing of them is imported here, and what hangs or dies there costs one sample.
"""
